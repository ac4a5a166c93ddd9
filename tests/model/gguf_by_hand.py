"""A second reading of GGUF, from the format's definition alone: numpy and struct, no library.

    file     "GGUF", version, #tensors, #fields | fields | tensor table | padding | data
    Q8_0     32 weights in 34 bytes: f16 d, 32 x int8 q         w = d q
    Q4_1     32 weights in 20 bytes: f16 d, f16 m, 16 bytes     w = d q + m
             byte i holds q_i in its low and q_{i+16} in its high four bits

Tensor sizes are listed fastest axis first, so a weight of [rows, columns] reads "columns rows".
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def text(self) -> str:
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, count = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(SCALARS[kind])


def read_by_hand(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(fields, tensors in float32 as stored: llama.cpp's row order)."""
    data = path.read_bytes()
    cursor = Cursor(data)
    assert data[:4] == b"GGUF"
    cursor.at = 8
    num_tensors, num_fields = cursor.take("Q"), cursor.take("Q")
    fields = {}
    for _ in range(num_fields):
        name = cursor.text()
        fields[name] = cursor.value(cursor.take("I"))
    table = []
    for _ in range(num_tensors):
        name = cursor.text()
        sizes = [cursor.take("Q") for _ in range(cursor.take("I"))]
        table.append((name, sizes[::-1], cursor.take("I"), cursor.take("Q")))
    align = fields.get("general.alignment", 32)
    start = -(-cursor.at // align) * align
    return fields, {
        name: weights(data, start + offset, shape, kind) for name, shape, kind, offset in table
    }


def weights(data: bytes, at: int, shape: list[int], kind: int) -> np.ndarray:
    count = int(np.prod(shape))
    if kind == F32:
        return np.frombuffer(data, "<f4", count, at).reshape(shape)
    size = {Q4_1: 20, Q8_0: 34}[kind]
    blocks = np.frombuffer(data, np.uint8, count // 32 * size, at).reshape(-1, size)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    if kind == Q8_0:
        return (scale * blocks[:, 2:].copy().view(np.int8)).astype(np.float32).reshape(shape)
    minimum = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    low, high = blocks[:, 4:] & 15, blocks[:, 4:] >> 4
    levels = np.concatenate((low, high), axis=1).astype(np.float32)
    return (scale * levels + minimum).reshape(shape)
