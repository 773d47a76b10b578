"""Data keys of tenants: what somebody who can write to all rows cannot do with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import config_of, put_arguments
from support.tenants import APP, OWNER, Walled, open_walled

from langgraph_pgstate import Encryption, LocalMasterKey, PGState, RecorderSettings
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.errors import DataKeyError

MASTER = LocalMasterKey(bytes(range(32)))
# Records are written only when they must be.
WAITING = RecorderSettings(interval=3600)


@pytest.fixture(scope="module")
def walled(dsn: str) -> Iterator[Walled]:
    """A schema that keeps tenants apart."""
    with open_walled(dsn) as made:
        yield made


def give(walled: Walled, table: str, giver: str, taker: str, where: str = "true") -> None:
    """Copy rows of a tenant to another one, as only a role that sees all can."""
    columns = walled.rows(
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{{}}.{table}'::regclass AND attnum > 0 "
        "AND NOT attisdropped AND attname <> 'pgstate_tenant'"
    )
    names = ", ".join(name for (name,) in columns)
    walled.rows(
        f"INSERT INTO {{}}.{table} (pgstate_tenant, {names}) SELECT '{taker}', {names} FROM {{}}.{table} "
        f"WHERE pgstate_tenant = '{giver}' AND {where}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("claims", [True, False])
def test_a_data_key_serves_its_tenant_alone(claims: bool, walled: Walled) -> None:
    """Guard: a wrapped key names its tenant. Otherwise whoever can write could give rows to a tenant with their key."""
    hers, his = f"hers{claims}", f"his{claims}"
    config = config_of("t")
    with walled.open(encryption=Encryption(MASTER)) as state:
        state.for_tenant(hers).saver.put(*put_arguments(config, 0, note="of hers"))
        state.for_tenant(his).saver.put(*put_arguments(config_of("other"), 0))
    walled.rows(f"UPDATE {{}}.data_keys SET is_current = false WHERE pgstate_tenant = '{his}'")
    give(walled, "data_keys", hers, his)
    for table in ("threads", "checkpoints", "segments"):
        give(walled, table, hers, his)
    walled.rows(f"UPDATE {{}}.data_keys SET is_of_tenant = {claims} WHERE pgstate_tenant = '{his}'")
    with walled.open(encryption=Encryption(MASTER)) as state:
        with pytest.raises(DataKeyError, match="this master key did not wrap the data key"):
            state.for_tenant(his).saver.get_tuple(config)
        assert state.for_tenant(hers).saver.get_tuple(config) is not None


@pytest.mark.slow
def test_keys_from_before_a_move_are_bound_when_they_are_wrapped_again(walled: Walled) -> None:
    schema = f"{walled.schema}_moved"
    made = Walled(schema, walled.owner, walled.app, walled.operator, walled.server)
    made.rows(f"CREATE SCHEMA {schema} AUTHORIZATION {OWNER}")
    with PGState.open(made.owner, schema=schema, encryption=Encryption(MASTER), recording=WAITING) as state:
        state.setup()
        config = state.saver.put(*put_arguments(config_of("t"), 0))
        state.move_to_tenants("acme")
    made.rows(f"GRANT USAGE ON SCHEMA {schema} TO {APP}")
    made.rows(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {APP}")
    for is_bound in (False, True):
        with made.open(encryption=Encryption(MASTER), tenant="acme") as state:
            assert state.saver.get_tuple(config) is not None
        with Admin.open(made.app, schema=schema, tenant="acme", encryption=Encryption(MASTER)) as admin:
            assert made.rows("SELECT DISTINCT is_of_tenant FROM {}.data_keys") == [(is_bound,)]
            assert admin.rewrap_keys(every=True) == 1
    made.rows(f"DROP SCHEMA {schema} CASCADE")
