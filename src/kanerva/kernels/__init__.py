from . import gram
