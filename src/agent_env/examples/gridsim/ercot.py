"""Days from a real ERCOT export of "DAM Settlement Point Prices" (report NP4-190-CD).

The columns are the delivery date, the hour ending, the settlement point, its price and a flag for the repeated hour;
their spelling differs between the daily files, the yearly ones and the API. A day is used if it has one price for each
of 24 hours; whatever is left out is counted.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from math import isfinite
from pathlib import Path
from random import Random

from agent_env.errors import ConfigError
from agent_env.examples.gridsim.battery import HOURS
from agent_env.examples.gridsim.prices import EVAL_DAYS, HUBS, SEED, TRAIN_DAYS, Day, worth_a_task

EVAL_SHARE = 11
"""One in so many dates, the latest, is for eval."""

_COLUMNS = {
    "date": ("deliverydate",),
    "hour": ("hourending",),
    "point": ("settlementpoint", "settlementpointname"),
    "price": ("settlementpointprice",),
    "flag": ("dstflag", "repeatedhourflag"),
}
CLOCK, GAPS, JUNK, TWICE, POOR = (
    "with 23 or 25 hours",
    "with gaps",
    "with something that is not a number",
    "with two prices for an hour",
    "worth less than $100",
)


@dataclass(frozen=True, slots=True)
class Imported:
    """The days of an export, split by date, and what was left out."""

    name: str
    """the file's"""
    days: tuple[Day, ...]
    usable: int
    """days before sampling"""
    left_out: Mapping[str, int]
    """days by reason"""
    unreadable: int
    """rows without a date, which belong to no day"""

    def summary(self) -> str:
        """One line that states every count."""
        reasons = [f"{count:,} {reason}" for reason, count in self.left_out.items() if count]
        if self.unreadable:
            reasons.append(f"{self.unreadable:,} rows that could not be read")
        kept = f"{self.name}: {self.usable:,} usable days, {len(self.days):,} taken"
        return f"{kept}; left out: {', '.join(reasons) or 'none'}"


@dataclass(slots=True)
class _RawDay:
    prices: dict[int, set[tuple[str, float]]] = field(default_factory=lambda: defaultdict(set))
    """hour ending -> (flag, price); a set, since exports overlap"""
    junk: bool = False


def read_export(file: Path, hubs: Sequence[str] = ()) -> Imported:
    """The days of `hubs` (by default GridSim's five) in task order: the latest dates are eval, no date is in both.

    Raises `ConfigError` for a file that is no such export, a hub that it does not hold, and fewer than two dates.
    """
    left_out = Counter(dict.fromkeys((CLOCK, GAPS, JUNK, TWICE, POOR), 0))
    usable: dict[date, list[tuple[str, tuple[float, ...]]]] = defaultdict(list)
    raw, unreadable = _read_rows(file, hubs)
    for (day, hub), found in sorted(raw.items()):
        prices = _day_prices(day, found)
        if isinstance(prices, tuple) and worth_a_task(prices):
            usable[day].append((hub, prices))
        else:
            left_out[prices if isinstance(prices, str) else POOR] += 1
    if len(usable) < 2:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count)
        raise ConfigError(
            f"{file}: a bundle needs usable days on two dates at least, this file has {len(usable)}"
            + (f" (left out: {counts})" if counts else "")
        )
    dates = sorted(usable)
    first_eval = len(dates) - max(1, len(dates) // EVAL_SHARE)
    days = (
        *_sample("train", dates[:first_eval], usable, TRAIN_DAYS),
        *_sample("eval", dates[first_eval:], usable, EVAL_DAYS),
    )
    return Imported(file.name, days, sum(map(len, usable.values())), left_out, unreadable)


def _sample(
    split: str, dates: Iterable[date], usable: Mapping[date, list[tuple[str, tuple[float, ...]]]], count: int
) -> list[Day]:
    days = [Day(split, day.isoformat(), hub, prices) for day in dates for hub, prices in usable[day]]
    Random(f"{SEED}/{split}").shuffle(days)
    return days[:count]


def _day_prices(day: date, found: _RawDay) -> tuple[float, ...] | str:
    """The day's 24 prices, or why it is left out."""
    if _clock_changes(day) or any(len({flag for flag, _ in at}) > 1 for at in found.prices.values()):
        return CLOCK
    if found.junk:
        return JUNK
    if any(len(at) > 1 for at in found.prices.values()):
        return TWICE
    if len(found.prices) < HOURS:
        return GAPS
    return tuple(price for hour in range(1, HOURS + 1) for _, price in found.prices[hour])


def _clock_changes(day: date) -> bool:
    """Second Sunday of March and first Sunday of November: the United States' rule since 2007."""
    return day.weekday() == 6 and ((day.month == 3 and 8 <= day.day <= 14) or (day.month == 11 and day.day <= 7))


def _read_rows(file: Path, hubs: Sequence[str]) -> tuple[dict[tuple[date, str], _RawDay], int]:
    wanted = set(hubs or HUBS)
    raw: dict[tuple[date, str], _RawDay] = defaultdict(_RawDay)
    unreadable = 0
    seen: set[str] = set()
    for date_text, hour_text, point, price_text, flag in _cells(file):
        seen.add(point)
        day = _date(date_text)
        if day is None:
            unreadable += 1
        elif point in wanted:
            hour, price = _number(hour_text.removesuffix(":00")), _number(price_text)
            if price is None or hour is None or hour not in range(1, HOURS + 1):
                raw[day, point].junk = True
            else:
                raw[day, point].prices[int(hour)].add((flag, round(price, 2)))
    missing = sorted(wanted - seen)
    if missing if hubs else len(missing) == len(wanted):
        held = ", ".join(sorted(seen - {""})[:8]) or "none"
        raise ConfigError(f"{file}: no prices of {', '.join(missing)}; its settlement points are {held}, ...")
    return raw, unreadable


def _cells(file: Path) -> Iterator[tuple[str, str, str, str, str]]:
    """date, hour, point, price, flag of every row, stripped; a short row has empty cells."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.reader(lines)
            places = _places(file, next(rows, []))
            for row in rows:
                if any(row):
                    date_text, hour, point, price, flag = (
                        row[place].strip() if place is not None and place < len(row) else "" for place in places
                    )
                    yield date_text, hour, point, price, flag
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{file} is not a CSV file (unpack a zip, save a workbook as CSV): {error}") from error
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror or error}") from error


def _places(file: Path, header: Sequence[str]) -> list[int | None]:
    words = [re.sub("[^a-z]", "", cell.lower()) for cell in header]
    places = {
        column: next((words.index(name) for name in names if name in words), None) for column, names in _COLUMNS.items()
    }
    missing = [names[0] for column, names in _COLUMNS.items() if places[column] is None and column != "flag"]
    if missing:
        found = ", ".join(header)[:200] or "nothing"
        raise ConfigError(
            f"{file} is not an export of DAM Settlement Point Prices: its first line lacks {', '.join(missing)}; "
            f"it holds {found}"
        )
    return list(places.values())


def _date(text: str) -> date | None:
    for form in ("%m/%d/%Y", "%Y-%m-%d"):
        try:
            return datetime.strptime(text[:10], form).date()
        except ValueError:
            continue
    return None


def _number(text: str) -> float | None:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if isfinite(number) and abs(number) < 1e6 else None
