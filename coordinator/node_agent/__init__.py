"""The agent of one machine of a job on several: a process that starts a zygote there, and relays for it.

__main__.py          reads its settings from standard input
agent.py             the loop: the link to the launcher, the zygote, files, console output
rank_questions.py    answers the coordinator's questions about the processes of its ranks
node_folder.py       where its ranks write
console.py           what its ranks print
node_description.py  the facts of the machine, for the launcher
"""
