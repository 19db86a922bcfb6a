from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, timedelta
from pathlib import Path

import pytest

from agent_env.errors import ConfigError
from agent_env.examples.gridsim import ercot
from agent_env.examples.gridsim.bundle import write_bundle
from agent_env.examples.gridsim.ercot import CLOCK, GAPS, JUNK, POOR, TWICE, read_export

PRICES = [20.0] * 12 + [80.25] * 12
FIRST = date(2024, 4, 1)
DAILY = "DeliveryDate,HourEnding,SettlementPoint,SettlementPointPrice,DSTFlag"
YEARLY = "Delivery Date,Hour Ending,Repeated Hour Flag,Settlement Point,Settlement Point Price"
API = "deliveryDate,hourEnding,settlementPoint,settlementPointPrice,DSTFlag"

Row = tuple[date, int, str, object]


def rows_of(day: date, hub: str = "HB_NORTH", prices: Iterable[float] = PRICES) -> list[Row]:
    return [(day, hour, hub, price) for hour, price in enumerate(prices, 1)]


def days_from(first: date, count: int, **kwargs: str) -> list[Row]:
    return [row for n in range(count) for row in rows_of(first + timedelta(days=n), **kwargs)]


def daily(row: Row, flag: str = "N") -> str:
    return f"{row[0]:%m/%d/%Y},{row[1]:02}:00,{row[2]}, {row[3]},{flag}"


def yearly(row: Row) -> str:
    return f"{row[0]:%m/%d/%Y},{row[1]:02}:00,N,{row[2]},{row[3]}"


def api(row: Row) -> str:
    return f"{row[0]:%Y-%m-%d},{row[1]},{row[2]},{row[3]},false"


def write(folder: Path, lines: Iterable[str], header: str = DAILY) -> Path:
    path = folder / "dam.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def write_daily(folder: Path, rows: Iterable[Row]) -> Path:
    return write(folder, map(daily, rows))


@pytest.mark.parametrize(
    ("header", "line"),
    [
        (DAILY, daily),
        (YEARLY, yearly),
        (API, api),
        ("\ufeff" + DAILY, daily),
        (" DELIVERY_DATE , Hour-Ending,Settlement Point Name,SETTLEMENT POINT PRICE,dst flag", daily),
    ],
)
def test_every_spelling_of_the_header_gives_the_same_days(
    tmp_path: Path, header: str, line: Callable[[Row], str]
) -> None:
    imported = read_export(write(tmp_path, map(line, days_from(FIRST, 12)), header))
    assert sorted(day.date for day in imported.days) == [f"2024-04-{n:02}" for n in range(1, 13)]
    assert {day.prices for day in imported.days} == {tuple(PRICES)}
    assert {day.hub for day in imported.days} == {"HB_NORTH"}
    assert sum(imported.left_out.values()) == imported.unreadable == 0


def test_rows_may_come_in_any_order_and_overlap(tmp_path: Path) -> None:
    rows = days_from(FIRST, 3)
    straight = read_export(write_daily(tmp_path, rows))
    assert read_export(write_daily(tmp_path, [*reversed(rows), *rows[:30]])) == straight


def test_the_latest_eleventh_of_the_dates_is_for_eval(tmp_path: Path) -> None:
    rows = days_from(FIRST, 25) + days_from(FIRST, 25, hub="HB_WEST")
    days = read_export(write_daily(tmp_path, rows)).days
    assert {day.date for day in days if day.split == "eval"} == {"2024-04-24", "2024-04-25"}
    assert sum(day.split == "eval" for day in days) == 4
    assert sum(day.split == "train" for day in days) == 46


def test_two_dates_are_one_to_train_on_and_one_to_evaluate(tmp_path: Path) -> None:
    days = read_export(write_daily(tmp_path, days_from(FIRST, 2))).days
    assert [(day.split, day.date) for day in days] == [("train", "2024-04-01"), ("eval", "2024-04-02")]


def test_more_days_than_a_bundle_takes_are_sampled_alike_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ercot, "TRAIN_DAYS", 5)
    monkeypatch.setattr(ercot, "EVAL_DAYS", 2)
    path = write_daily(tmp_path, days_from(FIRST, 44))
    imported = read_export(path)
    assert [day.split for day in imported.days] == ["train"] * 5 + ["eval"] * 2
    assert imported.usable == 44
    assert imported == read_export(path)
    assert "44 usable days, 7 taken" in imported.summary()


def test_days_of_23_and_25_hours_are_left_out(tmp_path: Path) -> None:
    rows = days_from(FIRST, 2)
    spring = [row for row in rows_of(date(2024, 3, 10)) if row[1] != 3]
    lines = [
        *map(daily, rows + spring + rows_of(date(2024, 11, 3))),
        daily((date(2024, 11, 3), 2, "HB_NORTH", 20.0), "Y"),
    ]
    imported = read_export(write(tmp_path, lines))
    assert len(imported.days) == 2
    assert imported.left_out[CLOCK] == 2
    assert "2 with 23 or 25 hours" in imported.summary()


def test_a_repeated_hour_is_found_without_a_flag_or_a_known_date(tmp_path: Path) -> None:
    header = DAILY.removesuffix(",DSTFlag")
    rows = [*days_from(FIRST, 2), *rows_of(date(2024, 11, 3)), (date(2024, 11, 3), 2, "HB_NORTH", 20.0)]
    lines = [daily(row).removesuffix(",N") for row in rows]
    assert read_export(write(tmp_path, lines, header)).left_out[CLOCK] == 1
    flagged = [*map(daily, days_from(FIRST, 3)), daily((FIRST, 2, "HB_NORTH", 21.0), "Y")]
    assert read_export(write(tmp_path, flagged)).left_out[CLOCK] == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", GAPS),
        ("04/03/2024,05:00,HB_NORTH,n/a,N", JUNK),
        ("04/03/2024,05:00,HB_NORTH,,N", JUNK),
        ("04/03/2024,05:00,HB_NORTH", JUNK),
        ("04/03/2024,05:00,HB_NORTH,nan,N", JUNK),
        ("04/03/2024,05:00,HB_NORTH,inf,N", JUNK),
        ("04/03/2024,25:00,HB_NORTH,20.0,N", JUNK),
        ("04/03/2024,five,HB_NORTH,20.0,N", JUNK),
        ("04/03/2024,06:00,HB_NORTH,99.0,N", TWICE),
    ],
)
def test_a_faulty_day_is_left_out_and_counted(tmp_path: Path, line: str, reason: str) -> None:
    rows = [row for row in days_from(FIRST, 3) if (row[0].day, row[1]) != (3, 5)]
    imported = read_export(write(tmp_path, [*map(daily, rows), line]))
    assert {day.date for day in imported.days} == {"2024-04-01", "2024-04-02"}
    assert {key: n for key, n in imported.left_out.items() if n} == {reason: 1}


def test_a_day_with_little_to_earn_is_left_out(tmp_path: Path) -> None:
    rows = days_from(FIRST, 2) + rows_of(date(2024, 5, 1), prices=[20.0] * 24)
    assert read_export(write_daily(tmp_path, rows)).left_out[POOR] == 1


def test_rows_without_a_date_are_counted(tmp_path: Path) -> None:
    lines = [*map(daily, days_from(FIRST, 2)), "total,,,,", "13/45/2024,01:00,HB_NORTH,20.0,N", " , ,", ""]
    imported = read_export(write(tmp_path, lines))
    assert imported.unreadable == 3
    assert "3 rows that could not be read" in imported.summary()


def test_prices_keep_their_cents_and_thousands(tmp_path: Path) -> None:
    prices = [-250.999, *PRICES[1:23], 4999.0]
    lines = [*map(daily, days_from(FIRST, 1) + rows_of(date(2024, 4, 2), prices=prices[:23]))]
    lines.append('04/02/2024,24:00,HB_NORTH,"4,999.00",N')
    days = read_export(write(tmp_path, lines)).days
    assert days[1].prices == (-251.0, *prices[1:])


def test_the_five_hubs_are_taken_unless_others_are_named(tmp_path: Path) -> None:
    rows = [row for hub in ("HB_PAN", "HB_HOUSTON", "LZ_WEST", "HB_BUSAVG") for row in days_from(FIRST, 2, hub=hub)]
    path = write_daily(tmp_path, rows)
    assert {day.hub for day in read_export(path).days} == {"HB_PAN", "HB_HOUSTON"}
    assert {day.hub for day in read_export(path, ["LZ_WEST", "HB_PAN"]).days} == {"LZ_WEST", "HB_PAN"}
    with pytest.raises(ConfigError, match=r"no prices of LZ_NOWHERE; its settlement points are HB_BUSAVG, HB_HOUSTON"):
        read_export(path, ["LZ_WEST", "LZ_NOWHERE"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"lacks deliverydate, hourending, settlementpoint, settlementpointprice; it holds nothing"),
        (b"a,b,c\n1,2,3\n", r"lacks deliverydate.*it holds a, b, c"),
        (b"DeliveryDate,HourEnding,BusName,LMP,DSTFlag\n", r"lacks settlementpoint, settlementpointprice"),
        (b"PK\x03\x04\xff\xfe\x00", r"is not a CSV file \(unpack a zip"),
        (DAILY.encode() + b"\n04/01/2024,01:00,HB_N\x00RTH,1,N\n", r"no prices of HB_HOUSTON"),
        (DAILY.encode(), r"no prices of HB_HOUSTON, HB_NORTH.*settlement points are none"),
    ],
)
def test_another_file_is_refused_in_one_clear_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "dam.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_export(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read .*none\.csv: No such file"):
        read_export(tmp_path / "none.csv")


def test_one_date_is_not_enough(tmp_path: Path) -> None:
    rows = [*rows_of(FIRST), *rows_of(date(2024, 4, 2), prices=PRICES[:20])]
    with pytest.raises(ConfigError, match=r"two dates at least, this file has 1 \(left out: 1 with gaps\)"):
        read_export(write_daily(tmp_path, rows))


def test_an_imported_bundle_says_where_its_prices_are_from(tmp_path: Path) -> None:
    days = read_export(write_daily(tmp_path, days_from(FIRST, 4))).days
    folder = write_bundle(tmp_path / "b", days=days, source="Real prices of dam.csv.")
    readme = (folder / "README.md").read_text()
    assert "Real prices of dam.csv." in readme
    assert "synthetic" not in readme
    assert "3 train days (2024-04-01 to 2024-04-03) and 1 eval days (2024-04-04 to 2024-04-04)" in readme
