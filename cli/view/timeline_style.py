"""How the timeline looks, in light and in dark."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #ffffff; --faint: #d8dee4; --quiet: #59636e; --bad: #b3261e;
  --good: #1a7f37; --band: #59636e14;
  --c0: #8b949e; --c1: #2f6fd0; --c2: #2a9d63; --c3: #b8731f; --c4: #8a56c2; --c5: #b84a83; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --back: #0d1117; --faint: #30363d; --quiet: #9198a1;
  --bad: #ff7b72; --good: #56d364; --band: #9198a11f;
  --c0: #8b949e; --c1: #58a6ff; --c2: #4bc48a; --c3: #e3a04f; --c4: #bc8cff; --c5: #f778ba; } }
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--text); background: var(--back);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .4rem; }
p { margin: .2rem 0; color: var(--quiet); }
p b { color: var(--text); }
svg { width: 100%; height: auto; margin: 1.2rem 0; font-size: 13px; fill: var(--text); }
.rule { stroke: var(--faint); }
.gap { stroke: var(--quiet); stroke-dasharray: 3 4; }
.band { fill: var(--band); stroke: var(--back); stroke-width: 2; }
.tick, .first, .last, .flow { fill: var(--quiet); }
.tick { text-anchor: middle; }
.last { text-anchor: end; }
.mark { fill: var(--bad); font-weight: bold; }
.host0 { fill: var(--c0); background: var(--c0); } .host1 { fill: var(--c1); background: var(--c1); }
.host2 { fill: var(--c2); background: var(--c2); } .host3 { fill: var(--c3); background: var(--c3); }
.host4 { fill: var(--c4); background: var(--c4); } .host5 { fill: var(--c5); background: var(--c5); }
.undo { opacity: .55; }
.failed { fill: var(--bad); background: var(--bad); }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; color: var(--quiet); font-weight: 600; }
th, td { padding: .2rem .5rem; border-bottom: 1px solid var(--faint); vertical-align: top; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.track { width: 16%; min-width: 7rem; }
.track div { height: .7rem; margin-top: .3rem; border-radius: 2px; }
.outcome { white-space: normal; overflow-wrap: anywhere; color: var(--quiet); }
.ok { color: var(--good); }
.bad { color: var(--bad); font-weight: bold; }
"""
