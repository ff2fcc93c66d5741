"""`python -m trimaran.doctor > docs/doctor.md`: the document, written from the checks."""

from trimaran.doctor.document import markdown

print("\n".join(markdown()))
