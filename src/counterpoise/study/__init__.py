"""The paper's figures and tables, one file each: measure, judge by a rule fixed beforehand, draw.

A study is one file with `STUDY = Study(...)` and one line here.
"""

from counterpoise.registry import Registry

STUDIES = Registry(
    "study",
    {
        "flipping": "counterpoise.study.flipping:STUDY",
        "coupling": "counterpoise.study.coupling:STUDY",
        "masking": "counterpoise.study.masking:STUDY",
        "polarity": "counterpoise.study.polarity:STUDY",
        "value": "counterpoise.study.value:STUDY",
        "budget": "counterpoise.study.budget:STUDY",
        "composition": "counterpoise.study.composition:STUDY",
        "repeated": "counterpoise.study.repeated:STUDY",
        "variance": "counterpoise.study.variance:STUDY",
        "proxy": "counterpoise.study.proxy:STUDY",
        "sign_partition": "counterpoise.study.sign_partition:STUDY",
        "interventions": "counterpoise.study.interventions:STUDY",
        "credit": "counterpoise.study.credit:STUDY",
    },
)
