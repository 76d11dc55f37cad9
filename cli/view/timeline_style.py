"""Holds the styles of the timeline: in light and in dark, on paper, and with the colours of the reader's own system.

A bar's border and pattern say what it is, so that it can be read without colours.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #ffffff; --faint: #d8dee4; --quiet: #59636e; --bad: #b3261e;
  --good: #1a7f37; --soft: #f6f8fa;
  --c0: #8b949e; --c1: #5b95e5; --c2: #57b88a; --c3: #d99a4e; --c4: #a982d8; --c5: #d67aa9; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --back: #0d1117; --faint: #30363d; --quiet: #9198a1;
  --bad: #ff7b72; --good: #56d364; --soft: #161b22;
  --c0: #59636e; --c1: #1f5fb4; --c2: #23754c; --c3: #8f5a16; --c4: #6f44a6; --c5: #953a69; } }
* { box-sizing: border-box; }
body { margin: 2rem auto; max-width: 90rem; padding: 0 1rem; color: var(--text); background: var(--back);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; }
p { margin: .2rem 0; }
.next, .legend { color: var(--quiet); }
dl { display: flex; flex-wrap: wrap; gap: .6rem 2rem; margin: 1rem 0 1.4rem; }
dt { color: var(--quiet); font-size: 12px; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.drawing { border: 1px solid var(--faint); border-radius: 6px; font-size: 12px; overflow: hidden; }
.lane { display: grid; grid-template-columns: 8rem 1fr; border-top: 1px solid var(--faint); }
.lane:first-child { border-top: 0; background: var(--soft); }
.name { padding: .35rem .6rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bytes .name, .waits .name, .ends .name { color: var(--quiet); }
.cells { position: relative; min-height: 1.9rem; margin-right: .6rem; }
.cells > * { position: absolute; top: .3rem; bottom: .3rem; }
.bar { display: block; min-width: 3px; overflow: hidden; border: 1px solid var(--text); border-radius: 2px;
  color: var(--text); text-decoration: none; white-space: nowrap; background-color: var(--hue);
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.bar, .band { container-type: inline-size; }
@container (max-width: 2.6rem) { .bar > span, .band > span { visibility: hidden; } }
.bar:hover, .bar:focus { outline: 2px solid var(--text); z-index: 1; }
.bar > span { display: block; padding: 0 .3rem; overflow: hidden; text-overflow: ellipsis; line-height: 1.15rem; }
.host0 { --hue: var(--c0); } .host1 { --hue: var(--c1); } .host2 { --hue: var(--c2); }
.host3 { --hue: var(--c3); } .host4 { --hue: var(--c4); } .host5 { --hue: var(--c5); }
.undo { border-style: dashed; background-color: var(--back);
  background-image: repeating-linear-gradient(135deg, var(--hue) 0 2px, transparent 2px 6px); }
.undo > span { width: fit-content; max-width: 100%; background: var(--back); }
.failed { border: 3px double var(--bad); min-width: 8px; background-color: var(--back); }
.running { border-right-style: dotted; border-right-width: 4px; }
.band { border-left: 2px solid var(--quiet); color: var(--quiet); overflow: hidden; white-space: nowrap; }
.band > span { display: block; padding-left: .3rem; overflow: hidden; text-overflow: ellipsis; font-weight: 600; }
.bytes svg { left: 0; width: 100%; height: calc(100% - .6rem); fill: var(--faint); stroke: var(--quiet);
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.bytes polygon { vector-effect: non-scaling-stroke; }
.bytes .cells { min-height: 3.4rem; }
.wait { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; text-align: center; color: var(--quiet);
  border: dashed var(--quiet); border-width: 0 1px; }
.ends .cells { font-variant-numeric: tabular-nums; }
.first { left: 0; } .last { right: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; font-size: 12px; margin: .5rem 0 1.6rem; }
.key { display: inline-block; width: 1.6rem; height: .8rem; vertical-align: -1px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; table-layout: fixed; }
th { text-align: left; color: var(--quiet); font-weight: 600; }
th, td { padding: .2rem .4rem; border-bottom: 1px solid var(--faint); vertical-align: top; overflow-wrap: anywhere; }
th:nth-child(1) { width: 1.7rem; } th:nth-child(2) { width: 12.5rem; } th:nth-child(3) { width: 6rem; }
th:nth-child(4) { width: 6.6rem; } th:nth-child(5) { width: 4.6rem; } th:nth-child(6) { width: 22%; }
.group th { padding-top: 1rem; color: var(--text); font-size: 14px; width: auto; }
.group span { color: var(--quiet); font-weight: 400; font-size: 13px; }
tr:target { outline: 2px solid var(--quiet); }
td.number, td:nth-child(4) { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.number { text-align: right; }
tr.wait td { text-align: left; background: var(--soft); }
.track > div { position: relative; height: .8rem; margin-top: .25rem; border-bottom: 1px dotted var(--faint); }
.track .bar { position: absolute; top: 0; bottom: 0; }
.outcome { color: var(--quiet); }
pre { white-space: pre-wrap; margin: .2rem 0; }
.ok { color: var(--good); }
.bad { color: var(--bad); font-weight: bold; }
@media (max-width: 60rem) { th:nth-child(6) { width: 14%; } th:nth-child(3) { width: 5.4rem; } }
@media (forced-colors: active) { .bytes svg { fill: none; stroke: CanvasText; } }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } tr { break-inside: avoid; }
  .drawing { break-inside: avoid; } }
"""
