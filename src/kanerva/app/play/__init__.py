"""The playground: a page in the browser on which memories are written, recalled from, looked into and mapped.

pictures     images as they travel between the page and the server
session      a visitor's memory, and how many of them are kept
panels       what each panel of the page asks for, as events, one after another
queue        who computes when: bounded lines, one job a visitor; searches in the background
server       requests and answers, limits, headers
page/        index.html, style.css, play.js: all that a browser loads

It is a small page of its own on Starlette and uvicorn, not a Gradio app: that is 2 MB of packages instead of
hundreds, it loads in one round trip without fonts or scripts from elsewhere, every step of recall is drawn as it is
made, and a canvas of 28×28 pixels can be drawn on, erased and marked as the panels need it.
"""
