"""Settings and steps are plain data; what is none is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kvcrucible.contract.errors import InputError, NotRunError
from kvcrucible.contract.operations import Fork, Schedule
from kvcrucible.fuzz.adapters.registry import build
from kvcrucible.fuzz.setting import Depth, Setting, token_hash
from kvcrucible.fuzz.steps import ReadBack, RunEffects, step_from_plain, step_to_plain, steps_from_plain


def test_a_setting_survives_plain_data() -> None:
    setting = Setting(depth=Depth.PAYLOAD, hash_bits=0, lagging=True, profile="BF16")
    assert Setting.from_plain(setting.to_plain()) == setting
    assert type(Setting.from_plain(setting.to_plain()).depth) is Depth


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"colour": 1}, "no field 'colour'"),
        ({"page_size": "4"}, "page_size is int"),
        ({"capacity_pages": None}, "is int"),
        ({"hash_bits": "q"}, "hash_bits"),
        ({"hash_bits": -1}, "hash_bits is 0 to 64"),
        ({"hash_bits": 10**10}, "hash_bits is 0 to 64"),
        ({"backend": "foo"}, "unknown backend 'foo'"),
        ({"backend": "main"}, "unknown backend 'main'"),
        ({"capacity_pages": 2**31 - 1}, "capacity_pages is 1 to"),
        ({"backend_capacity_pages": 0}, "backend_capacity_pages is 1 to"),
        ({"max_concurrency": 10**10}, "max_concurrency is 1 to"),
        ({"max_context": 10**12}, "max_context is 1 to"),
        ({"capacity_pages": 4096, "page_size": 4096}, "at most 65536 positions"),
        ({"schedule_seed": 10**400}, "schedule_seed is"),
        ({"poison": "zz"}, "unknown poison"),
        ({"engine": ["l"]}, "engine is str"),
        ({"lagging": 1}, "lagging is bool"),
        ({"depth": "deep"}, "unknown depth"),
        ({"schedule": "backwards"}, "unknown schedule"),
        ({"fail_every": -1}, "fail_every is 0 to"),
        ({"host_bytes": "many"}, "host_bytes is int"),
        ({"host_bytes": 100}, "multiple of 64"),
        ({"host_bytes": 0}, "host_bytes is 64 to"),
        ({"host_bytes": 1 << 62}, "host_bytes is 64 to"),
        ({"host_bytes": 1 << 70}, "host_bytes is 64 to"),
    ],
)
def test_what_is_no_setting_is_refused(plain: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Setting.from_plain(plain)


def test_a_setting_of_before_the_host_tier_is_read() -> None:
    plain = Setting(lagging=True, depth=Depth.PAYLOAD).to_plain()
    for name in ("host_bytes", "schedule", "schedule_seed", "fail_every"):
        del plain[name]
    assert Setting.from_plain(plain) == Setting(lagging=True, depth=Depth.PAYLOAD)


def test_with_a_host_tier_every_pool_declares_what_payload_examples_store() -> None:
    setting = Setting(profile="K8V4", backend="draft", backend_page_size=4, host_bytes=1 << 20)
    config = setting.engine_config()
    assert config.host is not None
    assert [spec.planes[0].profile.name for spec in config.pools] == ["K8V4", "K8V4"]
    assert [spec.page_bytes for spec in config.pools] == [16 * 4 * 402, 4 * 4 * 402]
    assert all(not spec.planes for spec in Setting().engine_config().pools)


@pytest.mark.parametrize("step", [RunEffects(3), ReadBack(), Schedule(), Fork(1, 2, 3)], ids=repr)
def test_a_step_survives_plain_data(step: Any) -> None:
    assert step_from_plain(step_to_plain(step)) == step


@pytest.mark.parametrize(
    "plain",
    [
        ["RunEffects", {}],
        ["RunEffects", {"count": 1, "more": 2}],
        ["Nothing", {}],
        7,
        [],
        [["a"], {}],
        ["RunEffects", {"count": "x"}],
        ["ReadBack", 5],
    ],
)
def test_what_is_no_step_is_refused(plain: Any) -> None:
    with pytest.raises(InputError):
        step_from_plain(plain)


def test_a_hash_of_no_bits_makes_all_tokens_collide() -> None:
    assert {token_hash(0)((source, 5)) for source in range(9)} == {0}
    assert len({token_hash(4)((source, 5)) for source in range(99)}) <= 16
    assert token_hash(None) is hash


def test_an_unknown_engine_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InputError, match=r"known: .*paged"):
        build(Setting(engine="mine"))


def test_payload_depth_without_torch_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "kvcrucible.engine.storage.torch_storage", None)
    with pytest.raises(NotRunError, match="torch"):
        build(Setting(depth=Depth.PAYLOAD))


def test_steps_are_a_list() -> None:
    with pytest.raises(InputError, match="steps are a list"):
        steps_from_plain(5)
