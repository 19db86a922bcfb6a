from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_env.bundle import load_bundle
from agent_env.errors import BundleError

WriteBundle = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, write_bundle: WriteBundle, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a distribution with one bundle on the path; its package fails when it is imported."""

    def put(distribution: str, package: str, bundle: str) -> None:
        site = tmp_path / f"site-{distribution}"
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[agent_env.bundles]\n{bundle} = {package}\n")
        write_bundle(name=f"site-{distribution}/{package}/{bundle}")
        (site / package / "__init__.py").write_text("raise SystemExit\n")
        monkeypatch.setattr(sys, "path", [*sys.path, str(site)])

    return put


def test_an_installed_bundle_is_found_by_name_and_its_package_never_imported(install: Callable[..., None]) -> None:
    install("shop-bundles", "shop_bundles", "corner-shop")
    for reference in ("corner-shop", "shop-bundles/corner-shop"):
        bundle = load_bundle(reference)
        assert (bundle.name, bundle.id_root) == ("corner-shop", "@local/shop-bundles/corner-shop")
    assert "shop_bundles" not in sys.modules


def test_a_name_that_two_distributions_have_must_be_written_out(install: Callable[..., None]) -> None:
    install("one", "one_bundles", "corner-shop")
    install("two", "two_bundles", "corner-shop")
    assert load_bundle("two/corner-shop").name == "corner-shop"
    with pytest.raises(BundleError) as caught:
        load_bundle("corner-shop")
    assert caught.value.problems == (
        "corner-shop: several installed bundles have that name; write one/corner-shop and two/corner-shop",
    )


def test_a_folder_of_that_name_comes_first(
    install: Callable[..., None], write_bundle: WriteBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("shop-bundles", "shop_bundles", "corner-shop")
    folder = write_bundle(name="corner-shop")
    monkeypatch.chdir(folder.parent)
    assert load_bundle("corner-shop").path == folder
