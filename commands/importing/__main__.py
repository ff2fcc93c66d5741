from commands.importing.document import markdown

print("\n".join(markdown()))
