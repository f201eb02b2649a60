"""Writes the JSON Schemas that the package ships, from the dataclasses they describe.

    python scripts/write_schemas.py

Run it after a change to the report or the policy; a test fails while the files are not what this writes.
"""

import json
from pathlib import Path

import checkout  # noqa: F401

from andrea_export.judge.policy import policy_json_schema
from andrea_export.report.file import report_json_schema

FOLDER = Path(__file__).parents[1] / "andrea_export" / "schemas"


def main() -> None:
    for name, schema in (("report-2.json", report_json_schema()), ("policy-1.json", policy_json_schema())):
        (FOLDER / name).write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
