"""What each paper did, as data: `PAPERS["kovaleva-glue"]`.

find_paper("kovaleva-glue").rule
"""

from dataclasses import dataclass

from outlierlens.detection.rules import Rule
from outlierlens.errors import BadInput


@dataclass(frozen=True)
class Paper:
    """A protocol.

    Attributes:
        name: as commands take it. title: for reading.
        rule: that names the outliers.
        n_random: random sets of the paper.
        select: whether outliers must also cost at least 5 times what random dimensions cost (Puccetti et al. 2022).
        seed: of fine-tuning and of control sets.
    """

    name: str
    title: str
    rule: Rule
    n_random: int
    select: bool
    seed: int = 42


PAPERS = {
    paper.name: paper
    for paper in (
        Paper("kovaleva-glue", "Kovaleva et al. 2021, GLUE with outliers off", Rule("kovaleva", 3.0), 1000, False),
        # The released code has no random control; the number of sets is Kovaleva et al.'s.
        Paper("puccetti-glue", "Puccetti et al. 2022, GLUE with outliers off", Rule("puccetti", 2.5), 1000, True),
    )
}


def find_paper(name: str) -> Paper:
    """The protocol called `name`; raises BadInput with the choices."""
    if name not in PAPERS:
        raise BadInput(f"unknown paper {name!r}; replicate takes {', '.join(PAPERS)}")
    return PAPERS[name]
