"""The timeline of a move in a real browser: it needs nothing beside it, lies, overlaps and hides nothing."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support import browser
from support.labs.operations import Stage, stage

from droveway.persistence.journal.tables import MoveStep

CLOUD = """
options: {max_attempts: 2}
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, ports: [{}]}}
"""
DATA = 32 << 20
WAIT = dt.timedelta(hours=1, minutes=30)
WIDTHS = (800, 1600)

BARS = """[...document.querySelectorAll('%s')].map(bar => {
  const box = bar.getBoundingClientRect(), style = getComputedStyle(bar);
  return {seq: +(bar.getAttribute('href') || bar.closest('tr').id).replace(/.*step-/, ''), left: box.left,
    right: box.right, top: box.top, bottom: box.bottom, border: style.borderLeftStyle, seen: style.visibility,
    pattern: style.backgroundImage, kinds: bar.className, title: bar.title}; })"""

# Every run of text by the boxes of its lines, cut to what its ancestors let through.
WORDS = """(() => { const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let number = 0;
while (walker.nextNode()) {
  const node = walker.currentNode, range = document.createRange(); let ancestor = node.parentElement;
  if (!node.data.trim() || getComputedStyle(ancestor).visibility === 'hidden' || !ancestor.checkVisibility()) continue;
  let cut = {left: 0, right: 1e9, top: 0, bottom: 1e9};
  for (; ancestor; ancestor = ancestor.parentElement) {
    if (getComputedStyle(ancestor).overflowX === 'visible') continue;
    const box = ancestor.getBoundingClientRect();
    cut = {left: Math.max(cut.left, box.left), right: Math.min(cut.right, box.right),
           top: Math.max(cut.top, box.top), bottom: Math.min(cut.bottom, box.bottom)}; }
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) {
    const seen = [Math.max(box.left, cut.left), Math.max(box.top, cut.top), Math.min(box.right, cut.right),
                  Math.min(box.bottom, cut.bottom)];
    if (seen[2] - seen[0] > 1 && seen[3] - seen[1] > 1) found.push([number, node.data.trim(), ...seen]); }
  number += 1; }
return found; })()"""


@pytest.fixture(scope="module", name="steps")
def fixture_steps(lab: Stage) -> list[MoveStep]:
    """The history that the page shows."""
    return lab.history(lab.move("web").id)


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A move whose worker was killed in its copy, whose first destination failed, and that waited for its confirm."""
    with stage(tmp_path_factory.mktemp("timeline") / "lab", CLOUD) as made:
        with (made.directory("host1", "web") / "disk").open("r+b") as disk:
            disk.write(os.urandom(DATA))
        made.arm("copy_disks", "kill", phase="during", process="worker")
        made.arm("define_guest", "fail", phase="during", fault="destination")
        made.killed("server", "migrate", "web")
        made.cli("move", "resume")
        with made.lab.journal.write() as session:
            for step in session.scalars(sa.select(MoveStep)):
                step.started_at -= WAIT
                step.ended_at = step.ended_at and step.ended_at - WAIT
        made.cli("server", "confirm", "web")
        yield made


@pytest.fixture(scope="module", name="shown")
def fixture_shown(lab: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    """The page of its history, opened."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "page.html").write_text(lab.cli("move", "history", lab.move("web").id, "-f", "html"), encoding="utf-8")
    with browser.page(folder / "profile") as page:
        page.open((folder / "page.html").as_uri())
        yield page


@pytest.fixture(autouse=True)
def _as_usual(shown: browser.Page) -> None:
    shown.show(1600)


def bars(shown: browser.Page, where: str) -> dict[int, dict[str, Any]]:
    return {bar["seq"]: bar for bar in shown.ask(BARS % f"{where} .bar:not(.key)")}


def overlapping(shown: browser.Page) -> list[tuple[str, str]]:
    """Pairs of texts that share more than a pixel of the page."""
    found = []
    for one, other in combinations(shown.ask(WORDS), 2):
        number, text, left, top, right, bottom = one
        number2, text2, left2, top2, right2, bottom2 = other
        wide, high = min(right, right2) - max(left, left2), min(bottom, bottom2) - max(top, top2)
        # Boxes of two lines meet where their letters do not.
        if number != number2 and wide > 1 and high > 3:
            found.append((text, text2))
    return found


def test_the_page_asks_for_nothing_and_complains_of_nothing(shown: browser.Page, tmp_path: Path) -> None:
    asked = [event["request"]["url"] for event in shown.told("Network.requestWillBeSent")]
    assert len(asked) == 1
    assert asked[0].endswith("/page.html")
    assert shown.told("Log.entryAdded") == shown.told("Runtime.consoleAPICalled") == []
    assert shown.told("Runtime.exceptionThrown") == []
    faulty = tmp_path / "faulty.html"
    faulty.write_text("<script>console.error('no')</script><img src='gone.png'>")
    with browser.page(tmp_path / "profile") as other:
        other.open(faulty.as_uri())
        assert other.told("Runtime.consoleAPICalled")
        assert len(other.told("Network.requestWillBeSent")) == 2


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("where", [".drawing", ".track"])
def test_each_step_has_a_bar_where_its_times_say(
    shown: browser.Page, steps: list[MoveStep], where: str, width: int
) -> None:
    shown.show(width)
    drawn = bars(shown, where)
    assert sorted(drawn) == [step.seq for step in steps]
    for bar in drawn.values():
        assert bar["right"] - bar["left"] >= 3, bar
        assert bar["bottom"] - bar["top"] >= 8, bar
        assert bar["seen"] == "visible"
        assert 0 <= bar["left"] < bar["right"] <= width + 1, bar
    for before, after in pairwise(steps):
        assert drawn[before.seq]["left"] <= drawn[after.seq]["left"], (before.step, after.step)
    longest = max(steps, key=lambda step: (step.ended_at or step.started_at) - step.started_at)
    for step in steps:
        assert step.ended_at is not None
        seconds = (step.ended_at - step.started_at).total_seconds()
        whole = (longest.ended_at - longest.started_at).total_seconds()  # type: ignore[operator]
        wide, widest = (drawn[each.seq]["right"] - drawn[each.seq]["left"] for each in (step, longest))
        assert wide == pytest.approx(max(8 if step.error else 3, widest * seconds / whole), abs=6), step.step


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("media", ["screen", "print"])
def test_no_text_stands_on_another_and_none_leaves_the_page(shown: browser.Page, media: str, width: int) -> None:
    shown.show(width, media=media)
    assert len(shown.ask(WORDS)) > 200
    assert overlapping(shown) == []
    assert shown.ask("document.documentElement.scrollWidth <= window.innerWidth")
    shown.ask("document.querySelector('.first').style.left = '95%'")
    try:
        assert overlapping(shown)
    finally:
        shown.ask("document.querySelector('.first').style.left = ''")


@pytest.mark.parametrize("features", [{}, {"forced_colors": "active"}, {"prefers_color_scheme": "dark"}])
def test_nothing_is_told_by_a_colour_alone(
    shown: browser.Page, steps: list[MoveStep], features: dict[str, str]
) -> None:
    """A failure and an undo have borders of their own, a host its lane, each bar its words for a pointer."""
    shown.show(800, **features)
    drawn = bars(shown, ".drawing")
    for step in steps:
        bar = drawn[step.seq]
        wanted = "double" if step.error else "solid" if step.direction == "execute" else "dashed"
        assert bar["border"] == wanted, bar
        assert f" {step.step} on {step.host or 'conductor'}" in bar["title"]
    lanes = {(step.host or "conductor"): drawn[step.seq]["top"] for step in steps}
    assert len(set(lanes.values())) == len(lanes) == 4
    assert all(drawn[step.seq]["top"] == lanes[step.host or "conductor"] for step in steps)


def test_kills_attempts_waits_and_bytes_are_there_in_words(shown: browser.Page) -> None:
    said = shown.ask("document.querySelector('.drawing').innerText")
    assert "migrate, attempt 1" in said
    assert "no step ran" in said
    assert "1 h 30 min" in said
    assert "sent 64.0 MiB" in said
    rows = shown.ask("[...document.querySelectorAll('tbody tr')].map(row => row.innerText.replace(/\\s+/g, ' '))")
    assert [row for row in rows if "copy_disks ↻" in row]
    assert [row for row in rows if "✗ define_guest" in row]
    assert any("sent 32.0 MiB at" in row for row in rows)
    assert [row for row in rows if "no step ran for 1 h 30 min" in row]


def test_the_page_can_be_printed(shown: browser.Page) -> None:
    paper = shown.printed()
    assert paper.startswith(b"%PDF")
    assert 1 <= paper.count(b"/Type /Page\n") <= 6
