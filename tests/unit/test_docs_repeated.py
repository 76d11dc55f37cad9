"""No two pages say the same thing: no paragraph stands, word by word or nearly, in two places."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
WRITTEN_BY_TOOLS: Final = re.compile(r"(trace|benchmarks|graph-mutants|mutants.*|crash-matrix.*)\.rst")
SHORTEST: Final = 25
"""Words of a paragraph that is compared."""
RUN: Final = 5
"""Words in a row that count as the same."""
MOST_ALIKE: Final = 0.25
"""The share of the shorter paragraph's runs of words that the other one may have too."""


class Paragraph(NamedTuple):
    """A paragraph of prose, and all runs of words in it."""

    page: str
    begins: str
    runs: frozenset[tuple[str, ...]]


def prose(text: str) -> str:
    """The page without its blocks of code and output, in which the same commands are shown again and again."""
    kept: list[str] = []
    block: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if block is None:
            kept.append(line)
            if line.rstrip().endswith("::") or ".. code-block::" in line:
                block = indent
    return "\n".join(kept)


def paragraphs(page: str, text: str) -> Iterator[Paragraph]:
    """Those of the page that are long enough."""
    for paragraph in re.split(r"\n\s*\n", prose(text)):
        words = re.findall(r"\w+", paragraph.lower())
        if len(words) >= SHORTEST:
            runs = frozenset(tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1))
            yield Paragraph(page, " ".join(paragraph.split())[:80], runs)


def repeated(of_pages: list[Paragraph]) -> list[str]:
    """Pairs of paragraphs that are too much alike."""
    return [
        f"{one.page}: {one.begins}\n  is said again in {other.page}: {other.begins}"
        for one, other in itertools.combinations(of_pages, 2)
        if len(one.runs & other.runs) > MOST_ALIKE * min(len(one.runs), len(other.runs))
    ]


def written() -> list[Paragraph]:
    """The paragraphs of every page that a person wrote."""
    pages = [path for path in DOCS.rglob("*.rst") if "reference" not in path.parts or path.name == "index.rst"]
    pages = [path for path in pages if not WRITTEN_BY_TOOLS.fullmatch(path.name)]
    pages += [ROOT / "README.rst", ROOT / "CONTRIBUTING.rst", ROOT / "tests" / "README.rst"]
    return [
        each
        for path in sorted(pages)
        for each in paragraphs(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]


def test_no_paragraph_stands_in_two_pages() -> None:
    found = written()
    assert len(found) > 200
    assert repeated(found) == [], "let one page say it, and the other name that page"


def test_a_paragraph_that_is_nearly_the_same_is_found() -> None:
    said = (
        "The worker copies the disks of the server to the destination, proves each of them by its checksum, and keeps "
        "those of the source until an operator confirms the move or its deadline has passed."
    )
    again = said.replace("an operator", "somebody").replace("The worker", "A worker")
    other = (
        "::\n\n    droveway move confirm MOVE\n\nEach of these thirty words is said by this page alone, which is why "
    )
    other += "nothing of it may be found, however long the test looks for something that two pages have in common."
    found = [*paragraphs("one", f"Title\n=====\n\n{said}\n"), *paragraphs("two", f"{again}\n\n{other}\n")]
    assert len(found) == 3
    assert len(repeated(found)) == 1
    assert repeated(found)[0].startswith("one: The worker copies")
