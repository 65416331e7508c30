"""Write the pages and the pictures: `python -m docs.generator`."""

from docs.generator.pages import PAGES
from docs.generator.pictures import PICTURES
from docs.generator.places import file_of, picture_of

for name, page in PAGES.items():
    file_of(name).write_text(page(), encoding="utf-8")
for name, picture in PICTURES.items():
    picture_of(name).write_text(picture.svg(), encoding="utf-8")
