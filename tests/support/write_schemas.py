"""Write docs/schemas and the tables of fields in docs: ``python -m tests.support.write_schemas``."""

from __future__ import annotations

from tests.support.field_tables import PAGES, page_path, page_with_tables
from tests.support.json_schemas import DOCUMENTS, SCHEMAS, schema_text


def main() -> None:
    """Write all files that are generated from the types of results."""
    SCHEMAS.mkdir(exist_ok=True)
    for document in DOCUMENTS.values():
        document.path.write_text(schema_text(document), encoding="utf-8")
    for name in PAGES:
        page_path(name).write_text(page_with_tables(name), encoding="utf-8")


if __name__ == "__main__":
    main()
