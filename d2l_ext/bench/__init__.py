"""How fast this project decodes, next to the machine and to transformers.

`python -m d2l_ext.bench` (or `make bench`) writes a table and a plot. Each
model, method and batch runs in a process of its own, `worker`, so that a
row's memory is its own and only one framework is loaded. No framework is
imported here, nor by `cases`, `launch`, `measure` and `report`.
"""
