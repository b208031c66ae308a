"""The SQLite skill store. Skills, versions and bundles have one table each."""

from __future__ import annotations

import sqlite3

from antiphon.store.common.row_mapping import encode, skill_of, skill_version_of
from antiphon.store.skills import SkillDraft, SkillStore
from antiphon.wire.resources.skills import Skill, SkillVersion

from .database import Database

__all__ = ["SqliteSkills"]


class SqliteSkills(SkillStore):
    """Implements ``SkillStore`` with tables of an SQLite database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = database.queries

    async def create(
        self, tenant: str, draft: SkillDraft, bundle: bytes, *, max_bytes: int | None = None
    ) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            if not self._fits(connection, tenant, bundle, max_bytes):
                return False
            row = (tenant, draft.skill_id, draft.created_at)
            row_id = connection.execute(self._queries["put_skill"], row).lastrowid
            self._put_version(connection, row_id, draft.to_version(1), bundle)
            return True

        return await self._database.write(work)

    async def add_version(
        self,
        tenant: str,
        draft: SkillDraft,
        bundle: bytes,
        *,
        default: bool,
        max_bytes: int | None = None,
    ) -> SkillVersion | None:
        def work(connection: sqlite3.Connection) -> SkillVersion | None:
            if not self._fits(connection, tenant, bundle, max_bytes):
                return None
            key = (tenant, draft.skill_id)
            connection.execute(self._queries["next_skill_version"], (default, *key))
            row = connection.execute(self._queries["skill_row"], key).fetchone()
            if row is None:
                return None
            version = draft.to_version(row[1])
            self._put_version(connection, row[0], version, bundle)
            return version

        return await self._database.write(work)

    async def set_default_version(self, tenant: str, skill_id: str, version: int) -> bool:
        return await self._execute("choose_skill_version", (version, tenant, skill_id, version))

    async def get(self, tenant: str, skill_id: str) -> Skill | None:
        key = (tenant, skill_id, skill_id)
        found = await self._database.rows("skills", key, skill_of)
        return found[0] if found else None

    async def list_skills(self, tenant: str) -> tuple[Skill, ...]:
        return tuple(await self._database.rows("skills", (tenant, None, None), skill_of))

    async def list_versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        key = (tenant, skill_id)
        return tuple(await self._database.rows("skill_versions", key, skill_version_of))

    async def read_bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        key = (tenant, skill_id, version)
        found = await self._database.rows("bundle", key, lambda row: bytes(row[0]))
        return found[0] if found else None

    async def delete(self, tenant: str, skill_id: str) -> bool:
        return await self._execute("drop_skill", (tenant, skill_id))

    async def delete_version(self, tenant: str, skill_id: str, version: int) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            key = (tenant, skill_id, version)
            # This query keeps the default version: it is deleted only with the skill.
            if connection.execute(self._queries["drop_skill_version"], key).rowcount:
                return True
            return connection.execute(self._queries["drop_last_version"], key).rowcount > 0

        return await self._database.write(work)

    async def _execute(self, name: str, arguments: tuple[object, ...]) -> bool:
        query = self._queries[name]
        return await self._database.write(
            lambda connection: connection.execute(query, arguments).rowcount > 0
        )

    def _fits(
        self, connection: sqlite3.Connection, tenant: str, bundle: bytes, max_bytes: int | None
    ) -> bool:
        (held,) = connection.execute(self._queries["skill_bytes"], (tenant,)).fetchone()
        return max_bytes is None or held + len(bundle) <= max_bytes

    def _put_version(
        self,
        connection: sqlite3.Connection,
        skill: int | None,
        version: SkillVersion,
        bundle: bytes,
    ) -> None:
        row = (skill, int(version.version), len(bundle), encode(version))
        row_id = connection.execute(self._queries["put_skill_version"], row).lastrowid
        connection.execute(self._queries["put_bundle"], (row_id, bundle))
