"""GridSim, the example bundle: one task is one grid battery for one day of hourly day-ahead prices.

`battery` holds the rules, the exact optimum and the score; `prices` makes the synthetic days, `ercot` reads real ones;
`bundle` writes the folder; `policies` plays it without a model; `plots` draws a day.
"""
