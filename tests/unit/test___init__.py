"""What users import from the package itself."""

import importlib

import pytest

import catchwater


def test_every_name_that_is_offered_is_found_in_its_home() -> None:
    homes = {name: home for home, names in catchwater._HOMES.items() for name in names}
    assert homes.keys() == set(catchwater.__all__)
    for name, home in homes.items():
        module = importlib.import_module(f"catchwater.{home}")
        assert getattr(catchwater, name) is getattr(module, name)
        assert name in dir(catchwater)


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'catchwater' has no attribute 'Spark'"):
        catchwater.Spark  # noqa: B018  (to ask for it is the test)
