r"""Find the columns that hold prompt, answer and id: recognised by name, or named by options.

    prompt   problem, prompt, messages, conversations, question, query; a text, or chat messages
    answer   answer, reward_model.ground_truth, ground_truth, final_answer, expected_answer, target,
             then a short or boxed `solution`, then the assistant's last turn of `messages`
    id       id, uuid, unique_id, problem_id, extra_info.index; without one, the number of the row

The first name of a list that has a value in any record is used. A dot reaches into an object, as in
verl's `reward_model.ground_truth`. A name that an option sets is used as it is.

The assistant's last turn is left out of the prompt, except in a column called `prompt`, where it is
the beginning of the response. An answer that ends in a line "#### 12" is GSM8K's: the final answer
is taken, and the lines before it are the worked solution. A solution without a \boxed{} gets a last
line with the boxed answer, because the verifier reads the box and a model should see the rewarded
form. An answer that is long or has several lines is not boxed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import PoiseError, unknown_name
from counterpoise.task.chat import conversation_text, parse_messages, split_final_turn
from counterpoise.task.empty_fields import EmptyFieldError, counting_empty_fields
from counterpoise.task.read_files import Record, look_up
from counterpoise.types import ALL_COLUMNS, NO_COLUMNS, Columns, Messages, Prompt
from counterpoise.verify.math.boxed import extract_boxed

PROMPT_COLUMNS = ("problem", "prompt", "messages", "conversations", "question", "query")
ANSWER_COLUMNS = (
    "answer", "reward_model.ground_truth", "ground_truth", "final_answer", "expected_answer",
    "target",
)  # fmt: skip
ID_COLUMNS = ("id", "uuid", "unique_id", "problem_id", "extra_info.index")
PREFILLED_COLUMN = "prompt"  # a last turn of the assistant in it is the beginning of the response
# A file with `problem` and one of these has its prompts twice, as a bare problem and as they were
# put to a model, so the user is told which of them is read.
RIVAL_PROMPT_COLUMNS = ("prompt", "messages", "conversations")
LONGEST_ANSWER = 200  # characters; a longer text, or one of several lines, is a solution
FINAL_LINE = re.compile(r"####[ \t]*(\S[^\n]*?)\s*\Z")  # GSM8K's "#### 1,018" at the end
THOUSANDS_COMMA = re.compile(r"(?<=\d),(?=\d{3})")
CALCULATION = re.compile(r"<<[^<>]*>>")  # GSM8K's notes for a calculator
PARAMETER_REMEDY = (
    "and a reward function's parameter or update.kl_settings names '{name}': a parameter must be "
    "responses, answers, prompts or the name of a column"
)


@dataclass(frozen=True, slots=True)
class FieldOptions:
    """What the options say about the columns of a file or dataset (`ChosenColumns`: what is read).

    The first three may be left at their defaults: then other common names are recognised too.

    Example:
        FieldOptions(problem="question", answer="gold", remedy="name it with --fields {role}=NAME")
    """

    problem: str = "problem"
    answer: str = "answer"
    id: str = "id"
    solution: str = "solution"
    generic: str = "generic"  # the problem without its particulars, for `sample.anchors`
    needed_columns: tuple[str, ...] = ()  # a reward function has parameters of these names
    remedy: str = "set task.{role}_field"  # for a record without a problem, an answer or an id
    answers_required: bool = True  # False: the user's reward function does not need them


DEFAULT_FIELDS = FieldOptions()


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """The columns that are read from one file or dataset (`FieldOptions`: what the options say).

    Example:
        ChosenColumns(problem="prompt", answer="reward_model.ground_truth", id="extra_info.index")
    """

    problem: str = "problem"
    answer: str = "answer"  # "": the assistant's last turn, where there is one
    id: str = "id"  # "": the number of the row
    is_chat: bool = False
    unread: str = ""  # another column that also holds prompts, or ""

    def describe(self, *, has_answers: bool) -> str:
        """The line that a run prints about them.

        Example:
            reading prompts from 'messages' (chat), answers from 'reward_model.ground_truth'
        """
        if not has_answers:
            answers = "no answers"
        elif self.answer:
            answers = f"answers from '{self.answer}'"
        else:
            answers = "answers from the assistant's last turn"
        chat = " (chat)" if self.is_chat else ""
        description = f"reading prompts from '{self.problem}'{chat}, {answers}"
        if self.id != DEFAULT_FIELDS.id:
            description += f", ids from '{self.id}'" if self.id else ", ids from row numbers"
        if self.unread:
            description += (
                f"; '{self.unread}' is not read; to read it, set task.problem_field={self.unread}"
            )
        return description


# -- columns for reward functions -----------------------------------------------------------------


def check_needed_columns(
    needed_columns: Sequence[str], present_columns: Collection[str], where: str
) -> None:
    """Raise an error for a column that a reward function needs and no record has."""
    for name in needed_columns:
        if name not in present_columns and name != ALL_COLUMNS:
            raise PoiseError(
                f"{where}: {unknown_name('column', name, present_columns)}, "
                f"{PARAMETER_REMEDY.format(name=name)}"
            )


def select_columns(row: Mapping[str, Any], needed_columns: Sequence[str]) -> Columns:
    """The columns of a row that reward functions need; None for those that the row lacks."""
    if not needed_columns:
        return NO_COLUMNS
    columns = dict(row) if ALL_COLUMNS in needed_columns else {}
    return columns | {name: row.get(name) for name in needed_columns if name != ALL_COLUMNS}


# -- recognition ----------------------------------------------------------------------------------


def recognise_columns(records: Sequence[Record], fields: FieldOptions) -> ChosenColumns:
    """Choose the columns that hold prompts, answers and ids."""
    problem = _choose(records, fields.problem, PROMPT_COLUMNS) or fields.problem
    answer = _choose(records, fields.answer, (*ANSWER_COLUMNS, fields.solution))
    if answer and not _has_values(records, answer):
        # An option names a column that no record has: this call raises the error.
        _plain_text(records[0], answer, "answer", fields)
    first_prompt = next(
        (value for record in records if (value := look_up(record.values, problem)) is not None), ""
    )
    is_chat = isinstance(first_prompt, list)
    # The assistant's last turn is used only if no column holds answers.
    final_turn_is_answer = is_chat and problem != PREFILLED_COLUMN
    if not answer and not final_turn_is_answer and fields.answers_required:
        answer = fields.answer  # reading it raises the error that it is missing
    unread = ""
    if problem == fields.problem == DEFAULT_FIELDS.problem:
        unread = next((name for name in RIVAL_PROMPT_COLUMNS if _has_values(records, name)), "")
    return ChosenColumns(problem, answer, _choose_id(records, fields), is_chat, unread)


def _choose(records: Sequence[Record], name: str, recognised: Sequence[str]) -> str:
    """The name itself if an option set it; else the first recognised one with values, or ""."""
    if name != recognised[0]:
        return name
    return next((field_name for field_name in recognised if _has_values(records, field_name)), "")


def _choose_id(records: Sequence[Record], fields: FieldOptions) -> str:
    name = _choose(records, fields.id, ID_COLUMNS)
    # Rows are numbered if there is no id column. Ids that repeat in the column of task.id_field are
    # an error, which `read_prompts` raises.
    if name in ("", fields.id):
        return name
    # Indices repeat where files of several sources were joined: then rows are numbered anew.
    values = [look_up(record.values, name) for record in records]
    texts = {str(value) for value in values if isinstance(value, str | int)}
    return name if len(texts) == len(records) else ""


def _has_values(records: Sequence[Record], name: str) -> bool:
    return any(look_up(record.values, name) is not None for record in records)


# -- conversion -----------------------------------------------------------------------------------


def read_prompts(
    records: Sequence[Record], fields: FieldOptions, where: str
) -> tuple[list[Prompt], str]:
    """(all records as prompts, a line that says which columns were read); ids are unique."""
    chosen_columns = recognise_columns(records, fields)
    present_columns: dict[str, None] = {}
    for record in records:
        present_columns.update(dict.fromkeys(record.values))
    # Every prompt gets all columns, so that a reward function sees None instead of a missing key.
    missing_as_none = dict.fromkeys(present_columns)
    prompts: list[Prompt] = []
    record_by_id: dict[str, Record] = {}
    for record in records:
        with counting_empty_fields(records):
            prompt = to_prompt(record, chosen_columns, fields, {**missing_as_none, **record.values})
        if same_id_record := record_by_id.get(prompt.id):
            position = _position_seen_from(record, same_id_record)
            raise PoiseError(f"{record.where}: id '{prompt.id}' is also {position}")
        record_by_id[prompt.id] = record
        prompts.append(prompt)
    check_needed_columns(fields.needed_columns, present_columns, where)
    return prompts, chosen_columns.describe(has_answers=any(prompt.answer for prompt in prompts))


def _position_seen_from(record: Record, other: Record) -> str:
    """The line of the other record if it is in the same file, else the file as well."""
    file = record.where.removesuffix(f":{record.line}")
    is_same_file = other.line and other.where == f"{file}:{other.line}"
    return f"on line {other.line}" if is_same_file else f"at {other.where}"


def to_prompt(
    record: Record,
    chosen_columns: ChosenColumns,
    fields: FieldOptions = DEFAULT_FIELDS,
    columns: Columns = NO_COLUMNS,
) -> Prompt:
    """Check the fields of a record and return them as a prompt.

    Example:
        >>> record = Record("line 1", "0", {"id": 7, "q": "1 + 1 = ?", "a": 2})
        >>> to_prompt(record, ChosenColumns("q", "a"), FieldOptions("q", "a"))
        Prompt(id='7', problem='1 + 1 = ?', answer='2', solution='', generic='', messages=())
    """
    problem, messages, final_turn = _read_problem(record, chosen_columns, fields)
    answer = _read_answer(record, chosen_columns, fields, final_turn)
    prompt_id = record.row_name
    if chosen_columns.id:
        prompt_id = _plain_text(record, chosen_columns.id, "id", fields)
    solution, generic = (
        text.strip() if isinstance(text := look_up(record.values, name), str) else ""
        for name in (fields.solution, fields.generic)
    )
    if solution == answer and _is_short(answer):  # the column holds answers, not worked solutions
        solution = ""
    if not solution:
        solution = final_turn.strip() or _solution_before_answer(
            look_up(record.values, chosen_columns.answer)
        )
    texts = {
        "problem": problem, "answer": answer, "id": prompt_id,
        "solution": with_box(solution, answer), "generic": generic,
    }  # fmt: skip
    conversation = "".join(message.content + message.role for message in messages)
    for role, text in (*texts.items(), ("problem", conversation)):
        if not _is_encodable(text):
            raise PoiseError(
                f"{record.where}: the {role} holds half a surrogate pair, which is not a "
                "character: correct it"
            )
    return Prompt(**texts, columns=columns, messages=messages)


def _read_problem(
    record: Record, chosen_columns: ChosenColumns, fields: FieldOptions
) -> tuple[str, Messages, str]:
    """(the problem's text, its conversation, the assistant's last turn that was left out)."""
    value = look_up(record.values, chosen_columns.problem)
    if not isinstance(value, list):
        return _plain_text(record, chosen_columns.problem, "problem", fields), (), ""
    messages, final_turn = parse_messages(value, record.where, chosen_columns.problem), ""
    if chosen_columns.problem != PREFILLED_COLUMN:
        messages, final_turn = split_final_turn(messages)
    return conversation_text(messages), messages, final_turn


def _read_answer(
    record: Record, chosen_columns: ChosenColumns, fields: FieldOptions, final_turn: str
) -> str:
    """The answer's text; "" where there is none and none is required."""
    if not chosen_columns.answer:
        answer = _answer_in(final_turn, fields)
        if not answer and fields.answers_required:
            raise PoiseError(
                f"{record.where}: no answer: '{chosen_columns.problem}' does not end in a short or "
                "boxed answer of the assistant, and there is "
                f"{_no_column(record, 'answer', fields)}"
            )
        return answer
    value = unwrap_single_answer(look_up(record.values, chosen_columns.answer))
    if chosen_columns.answer == fields.solution and isinstance(value, str):
        answer = _answer_in(value, fields)
        if not answer and fields.answers_required:
            raise PoiseError(
                f"{record.where}: no answer: '{chosen_columns.answer}' has no short \\boxed{{}} "
                "and is too long to be an answer itself, and there is "
                f"{_no_column(record, 'answer', fields)}"
            )
        return answer
    if not fields.answers_required:
        return answer_text(value)
    text = _plain_text(record, chosen_columns.answer, "answer", fields, value)
    return str(final_answer(text))


def _answer_in(text: str, fields: FieldOptions) -> str:
    """The answer in a solution or a turn: its box, its line "#### 12", or the text itself.

    A long text counts as the answer only if `answers_required` is False: then the user's reward
    function judges it.
    """
    boxed = extract_boxed(text)
    answer = boxed if boxed is not None else str(final_answer(text)).strip()
    return answer if _is_short(answer) or not fields.answers_required else ""


def _is_short(answer: str) -> bool:
    return len(answer) <= LONGEST_ANSWER and "\n" not in answer


def unwrap_single_answer(value: Any) -> Any:
    """The answer in a list of one; any other value is returned as it is."""
    if not isinstance(value, list) or len(value) != 1:
        return value
    return final_answer(value) if isinstance(value[0], str) else value[0]


def answer_text(value: Any) -> str:
    """An answer of any type as text, for a user's reward function; "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False)
    return str(final_answer(value)).strip()


def _plain_text(
    record: Record, name: str, role: str, fields: FieldOptions, value: Any = None
) -> str:
    """The text or number in a column; an error says what is wrong with it."""
    value = look_up(record.values, name) if value is None else value
    if value is None and name not in record.values:
        raise PoiseError(f"{record.where}: {_no_column(record, role, fields, name)}")
    # bool is a subclass of int in Python, but `true` is not an answer.
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PoiseError(f"{record.where}: field '{name}' is neither text nor a number")
    text = str(value).strip()
    if not text:
        raise EmptyFieldError(record, name)
    return text


def _no_column(record: Record, role: str, fields: FieldOptions, name: str = "") -> str:
    """The message that a record lacks a column, with those it has and the names we recognise."""
    recognised = {"problem": PROMPT_COLUMNS, "answer": ANSWER_COLUMNS, "id": ID_COLUMNS}[role]
    name = name or recognised[0]
    present = ", ".join(sorted(record.values)) or "none"
    other_names = (
        f", nor {', '.join(recognised[1:])}" if name == recognised[0] and role != "id" else ""
    )
    remedy = fields.remedy.format(role=role)
    # The hint is for runs; commands that read files for something else have their own remedy.
    if role == "answer" and fields.remedy == DEFAULT_FIELDS.remedy:
        remedy += ", or verify.name to a reward that takes no answers"
    return f"no field '{name}' (fields: {present}){other_names}; {remedy}"


def final_answer(value: Any) -> Any:
    """The final answer in a column, without the solution before it; the first of several.

    Example:
        >>> final_answer(["$2$", "3"]), final_answer("so 9 * 2 = 18.\\n#### 1,018")
        ('2', '1018')
    """
    # OlympiadBench lists several answers, written as LaTeX between dollar signs.
    if isinstance(value, list | tuple):
        return final_answer(str(value[0]).strip().strip("$")) if value else ""
    if isinstance(value, str) and (last_line := FINAL_LINE.search(value)):
        return THOUSANDS_COMMA.sub("", last_line.group(1))
    return value


def _solution_before_answer(value: Any) -> str:
    """The worked solution of GSM8K, which stands before the final answer in the same column."""
    last_line = FINAL_LINE.search(value) if isinstance(value, str) else None
    return CALCULATION.sub("", value[: last_line.start()]).strip() if last_line else ""


def with_box(solution: str, answer: str) -> str:
    r"""The solution, with a last line that boxes the answer if it has no box.

    An answer that is long or has several lines, such as the tests of a program, is not boxed.

    Example:
        >>> with_box("4 * 3 = 12 pens.", "12")
        '4 * 3 = 12 pens.\nThe answer is \\boxed{12}.'
    """
    if not solution or not answer or not _is_short(answer):
        return solution
    if extract_boxed(solution) is not None:
        return solution
    return f"{solution}\nThe answer is \\boxed{{{answer}}}."


def _is_encodable(text: str) -> bool:
    """JSON can hold halves of surrogate pairs as escapes; no file and no tokenizer can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
