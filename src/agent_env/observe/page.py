"""The status page: one HTML document without scripts, for a phone as well as for a desk."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from importlib.metadata import version
from urllib.parse import parse_qs

from agent_env.errors import FailureKind
from agent_env.observe.health import Health, State
from agent_env.observe.times import Histogram, Times
from agent_env.observe.troubles import Streak, Troubles
from agent_env.observe.watcher import Watcher

MEDIA = b"text/html; charset=utf-8"
HEADERS = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"vary", b"accept"),
)
"""the page loads nothing and runs nothing, whatever a reason says"""
PATHS = ("/status", "/metrics")
"""what people read in a browser"""
REFRESH = 15
"""seconds after which a browser asks again"""
_TOP = 10
_ORDER = ("wait", "start", "deploy", "load", "turn", "call", "verify", "teardown")
_SIGNS = {State.HEALTHY: "✓", State.DEGRADED: "!", State.FAILING: "✕"}


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of now. `share` of what it could be draws a bar."""

    label: str
    value: str
    note: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What one server fills in; the rest is the same for both."""

    name: str
    what: str
    up_s: float
    health: Health
    now: Sequence[Tile]
    ended: Sequence[Tile]
    sums: str
    """the identity that the counts obey"""
    tables: Sequence[Table] = field(default=())
    unknown_times: str = ""
    """phases that this server can't know, and who does"""


def render(page: Page, watcher: Watcher) -> bytes:
    times, troubles = watcher.times, watcher.troubles
    body = [
        _header(page),
        _health(page.health),
        _section("Now", _tiles(page.now)),
        *(_section(table.title, _table(table)) for table in page.tables),
        _section("Since the start", _tiles(page.ended) + _note(page.sums)),
        _failing(troubles.listed()),
        _section("How long it took", _histograms(_in_order(times), page.unknown_times)),
        _section("Calls by tool", _histograms(_busiest(times.calls))) if times.calls else "",
        _masked(watcher),
        _last(troubles),
        "<footer>The same as numbers: <a href='/status?format=json'>JSON</a>, <a href='/metrics'>metrics</a>.</footer>",
    ]
    title = f"{page.health.state.word}: {page.name}"
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<meta http-equiv=refresh content={REFRESH}>"
        f"<title>{escape(title)}</title><style>{_style()}</style></head><body>{''.join(body)}</body></html>"
    ).encode("utf-8", "replace")


def wanted(accept: str, query: str) -> bool:
    """Whether `/status` is asked for as a page: by a browser, or by `?format=html`. All others get JSON."""
    asked = parse_qs(query).get("format")
    return asked[-1] == "html" if asked else "text/html" in accept


def duration(seconds: float | None) -> str:
    """Three digits and a unit that suits."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} days"


def _age(seconds: float) -> str:
    return duration(max(round(seconds), 1))


def _header(page: Page) -> str:
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    facts = f"{page.what} · agent-env {version('agent-env')} · up {duration(page.up_s)} · {now}"
    return f"<header><h1>{escape(page.name)}</h1><p>{escape(facts)}</p></header>"


def _health(health: Health) -> str:
    first, *others = health.why
    more = "".join(f"<li>{escape(why)}</li>" for why in others)
    return (
        f"<div class='health {health.state.word}'><b><span aria-hidden=true>{_SIGNS[health.state]}</span> "
        f"{health.state.word}:</b> <span>{escape(first)}</span>{f'<ul>{more}</ul>' if more else ''}</div>"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _note(text: str) -> str:
    return f"<p class=note>{escape(text)}</p>" if text else ""


def _tiles(tiles: Iterable[Tile]) -> str:
    return "<div class=tiles>" + "".join(_tile(tile) for tile in tiles) + "</div>"


def _tile(tile: Tile) -> str:
    bar = "" if tile.share is None else f"<i class=bar><i style='width:{min(max(tile.share, 0), 1):.0%}'></i></i>"
    note = f"<small>{escape(tile.note)}</small>" if tile.note else ""
    return f"<div><span>{escape(tile.label)}</span><b>{escape(tile.value)}</b>{bar}{note}</div>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    shown = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div class=wide>{shown}</div>{_note(table.note)}"


def _in_order(times: Times) -> dict[str, Histogram]:
    """As a rollout goes through them."""
    known = {**times.phases, "call": times.all_calls()}
    return {phase: known[phase] for phase in _ORDER if phase in known}


def _busiest(calls: Mapping[str, Histogram]) -> dict[str, Histogram]:
    return dict(sorted(calls.items(), key=lambda pair: -pair[1].total)[:_TOP])


def _histograms(histograms: Mapping[str, Histogram], note: str = "") -> str:
    head = "<tr><th></th><th>count</th><th>median</th><th>95 %</th><th>longest</th><th>1 ms to 10 min</th></tr>"
    rows = []
    for name, histogram in histograms.items():
        cells = [
            f"{histogram.count:,}",
            duration(histogram.quantile(0.5)),
            duration(histogram.quantile(0.95)),
            duration(histogram.largest if histogram.count else None),
        ]
        numbers = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f"<tr><th>{escape(name)}</th>{numbers}<td>{_bars(histogram)}</td></tr>")
    shown = f"<table class=figures><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<div class=wide>{shown}</div>{_note(note)}"


def _bars(histogram: Histogram) -> str:
    """The buckets side by side: each a factor of about two and a half."""
    most = max(histogram.counts)
    if not most:
        return ""
    bars = []
    for place, count in enumerate(histogram.counts):
        height = 0.0 if not count else max(1.0, 20 * count / most)
        bars.append(f"<rect x={place * 5} y={20 - height:.3g} width=4 height={height:.3g} />")
    width = 5 * len(histogram.counts)
    return f"<svg viewBox='0 0 {width} 20' width={width} height=20 aria-hidden=true>{''.join(bars)}</svg>"


def _failing(listed: Mapping[str, Streak]) -> str:
    if not listed:
        return ""
    now = time.time()
    items = [
        f"<li><b>{escape(task)}</b> <span>failed {streak.failures} times in {_age(now - streak.since)}, the last "
        f"{streak.in_a_row} with {streak.kind.value}</span><p>{escape(_short(streak.reason))}</p>"
        f"<p class=note>{escape(streak.kind.remedy)}</p></li>"
        for task, streak in list(listed.items())[:50]
    ]
    more = _note(f"and {len(listed) - 50} more" if len(listed) > 50 else "")
    return _section("Tasks that fail again and again", f"<ul class=failures>{''.join(items)}</ul>{more}")


def _masked(watcher: Watcher) -> str:
    if not watcher.kinds:
        return ""
    kinds = [(kind.value, str(count), kind.remedy) for kind, count in watcher.kinds.most_common()]
    names = [
        (what, name, str(count))
        for what, counter in (("task", watcher.tasks), ("tool", watcher.tools))
        for name, count in counter.most_common(_TOP)
    ]
    shown = _table(Table("", ("kind", "masked", "what to do"), kinds))
    return _section("Masked", shown + _table(Table("", ("", f"the {_TOP} most", "masked"), names)))


def _last(troubles: Troubles) -> str:
    if not troubles.last:
        return _section("Last failures", _note("none"))
    now = time.time()
    items = []
    for failure in reversed(troubles.last):
        where = [failure.task, failure.tool, failure.who, f"{_age(now - failure.at)} ago"]
        about = " · ".join(escape(part) for part in where if part)
        items.append(
            f"<li><b>{_kind(failure.kind)}</b> <span>{about}</span><p>{escape(_short(failure.reason))}</p></li>"
        )
    return _section(f"Last {len(items)} failures", f"<ul class=failures>{''.join(items)}</ul>")


def _kind(kind: FailureKind) -> str:
    return f"<abbr title='{escape(kind.remedy)}'>{kind.value}</abbr>"


def _short(reason: str) -> str:
    """Beginning and end: what failed, and the last that an env's log says."""
    return reason if len(reason) <= 600 else f"{reason[:300]} … {reason[-300:]}"


def _style() -> str:
    return resources.files("agent_env.observe").joinpath("page.css").read_text(encoding="utf-8")
