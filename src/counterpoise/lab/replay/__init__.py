"""`poise replay`: one virtual update for each iteration of stored rollouts, under any model.

source.py        rollouts, advantages and plans that a trainer stored
start.py         the weights that every virtual update starts from
alternatives.py  what QB and RB would have made of the same rows
folder.py        replay.json: the request, so that the same command goes on
run.py           read -> credit -> compose -> update -> store, with the stages of loop.py
"""
