"""Finished runs side by side, or as a page for a browser.

A page shows what the run's folder keeps, so it needs no network, no data and no jax. Training writes it at its end.

    compare.py   runs side by side: fields that differ, results, curves
    command.py   the page as a file: `vit-jax report`
    parts.py     what the folder keeps of the trained network (report/kept.py), checked
    charts.py    curves and confusion matrix, which Bokeh draws
    tables.py    settings, results, cost, versions, certificates, the command
    curves.py    which curves, and what is said of them
    contents.py  all that is shown, and what is missing
    page.py      page.html, page.css, page.js and Bokeh's script as one file
"""
