"""The pages of docs/reference, each made from the code it describes.

A page is the text of one function here. What a key, an option or an error means is read where the code says it (a
docstring, a help text), so that nothing is said twice.
"""

from __future__ import annotations

from reference_pages.keys import policy, recipe, report
from reference_pages.pages import command_line, exit_codes, precisions

PAGES = {
    "command-line.md": command_line,
    "recipe.md": recipe,
    "policy.md": policy,
    "report.md": report,
    "exit-codes.md": exit_codes,
    "precisions.md": precisions,
}
