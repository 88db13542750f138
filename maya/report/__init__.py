"""`maya report`: a run on one HTML page that needs nothing else, neither files beside it nor the network.

`content` says what is on the page, `collect` finds it out from a run's timeline, `write` puts the page together from
the texts, styles and scripts in page/.
"""
