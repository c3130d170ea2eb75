"""The capacity planner judged from outside: what its command says against engines that are built as it says."""
