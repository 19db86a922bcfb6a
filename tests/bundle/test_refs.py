from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent_env.bundle import Bundle, load_bundle
from agent_env.bundle.refs import missing, resolve

WriteBundle = Callable[..., Path]


@pytest.fixture
def bundle(write_bundle: WriteBundle) -> Bundle:
    files = {"envs/shop/env.toml": 'id = "@local/till"\n', "artifacts/caf\u00e9/x": "", "artifacts/caf\u00e9/y": ""}
    return load_bundle(write_bundle(files))


@pytest.mark.parametrize("reference", ["shop", "@local/till"])
def test_an_env_is_meant_by_name_and_by_declared_id(bundle: Bundle, reference: str) -> None:
    assert resolve(bundle, "envs", reference) == "shop"


def test_an_entity_without_a_declared_id_has_one_from_the_bundles_place(bundle: Bundle) -> None:
    assert resolve(bundle, "artifacts", f"{bundle.id_root}/check") == "check"


def test_a_reference_is_normalised_as_names_are(bundle: Bundle) -> None:
    assert resolve(bundle, "artifacts", "cafe\u0301") == "caf\u00e9"


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        ("shp", "no env 'shp' in this bundle; did you mean 'shop'?"),
        ("Shop", "'Shop' isn't in this bundle, but 'shop' is; names are case-sensitive"),
        ("check", "'check' is this bundle's artifact, and this names one of its envs"),
    ],
)
def test_a_reference_that_fits_nothing_says_why(bundle: Bundle, reference: str, line: str) -> None:
    assert resolve(bundle, "envs", reference) is None
    assert missing(bundle, "envs", reference) == line
