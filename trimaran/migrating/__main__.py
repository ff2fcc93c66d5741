from trimaran.migrating.document import markdown

print("\n".join(markdown()))
