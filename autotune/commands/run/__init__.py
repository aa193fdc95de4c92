"""`autotune run`: a search for the program of a command, which is started unchanged.

autotune run -- COMMAND ...          parent: start.py, rerun.py
    └─ the user's programs           startup/sitecustomize.py in each Python, hook.py in those with a Trainer
          └─ the first train()       program.py: a search for the Trainer (sent), or facts for the parent
    └─ again: the command, once a trial, up to its measured steps (trial.py)
"""
