"""The PostgreSQL skill store. Skills, versions and bundles have one table each."""

from __future__ import annotations

from antiphon.store.common.row_mapping import encode, skill_of, skill_version_of
from antiphon.store.skills import SkillDraft, SkillStore
from antiphon.wire.resources.skills import Skill, SkillVersion

from .pool import ConnectionPool, Transaction, index_key

__all__ = ["PostgresSkills"]


class PostgresSkills(SkillStore):
    """Implements ``SkillStore`` with tables in PostgreSQL."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def create(
        self, tenant: str, draft: SkillDraft, bundle: bytes, *, max_bytes: int | None = None
    ) -> bool:
        async with self._pool.tenant_transaction("lock_files", tenant) as transaction:
            if not await _fits(transaction, tenant, bundle, max_bytes):
                return False
            row_id = await transaction.value("put_skill", tenant, draft.skill_id, draft.created_at)
            await _put_version(transaction, row_id, draft.to_version(1), bundle)
            return True

    async def add_version(
        self,
        tenant: str,
        draft: SkillDraft,
        bundle: bytes,
        *,
        default: bool,
        max_bytes: int | None = None,
    ) -> SkillVersion | None:
        async with self._pool.tenant_transaction("lock_files", tenant) as transaction:
            if not await _fits(transaction, tenant, bundle, max_bytes):
                return None
            key = index_key(draft.skill_id)
            rows = await transaction.rows("next_skill_version", tenant, key, default)
            if not rows:
                return None
            ((row_id, number),) = rows
            version = draft.to_version(number)
            await _put_version(transaction, row_id, version, bundle)
            return version

    async def set_default_version(self, tenant: str, skill_id: str, version: int) -> bool:
        return bool(
            await self._pool.rows("choose_skill_version", tenant, index_key(skill_id), version)
        )

    async def get(self, tenant: str, skill_id: str) -> Skill | None:
        found = await self._pool.decoded_rows(skill_of, "skills", tenant, index_key(skill_id))
        return found[0] if found else None

    async def list_skills(self, tenant: str) -> tuple[Skill, ...]:
        return tuple(await self._pool.decoded_rows(skill_of, "skills", tenant, None))

    async def list_versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        return tuple(
            await self._pool.decoded_rows(
                skill_version_of, "skill_versions", tenant, index_key(skill_id)
            )
        )

    async def read_bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        found = await self._pool.rows("bundle", tenant, index_key(skill_id), version)
        return bytes(found[0][0]) if found else None

    async def delete(self, tenant: str, skill_id: str) -> bool:
        return bool(await self._pool.rows("drop_skill", tenant, index_key(skill_id)))

    async def delete_version(self, tenant: str, skill_id: str, version: int) -> bool:
        async with self._pool.transaction() as transaction:
            key = (tenant, index_key(skill_id), version)
            # Lock the skill, because the next query depends on its other versions.
            await transaction.rows("skill_row", *key[:2])
            if await transaction.rows("drop_skill_version", *key):
                return True
            return bool(await transaction.rows("drop_last_version", *key))


async def _fits(
    transaction: Transaction, tenant: str, bundle: bytes, max_bytes: int | None
) -> bool:
    stored_bytes = await transaction.value("skill_bytes", tenant)
    return max_bytes is None or stored_bytes + len(bundle) <= max_bytes


async def _put_version(
    transaction: Transaction, skill: int, version: SkillVersion, bundle: bytes
) -> None:
    row = (skill, int(version.version), len(bundle), encode(version))
    row_id = await transaction.value("put_skill_version", *row)
    await transaction.rows("put_bundle", row_id, bundle)
