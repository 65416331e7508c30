"""What the demo digests where there are no documents: three short texts."""

from __future__ import annotations

SAMPLES = {
    "bread.md": """\
# Bread

Bread is made of flour, water and salt. Yeast makes the dough rise: it eats the sugar of the flour and breathes out
gas. The gas stays in the dough, because kneading has turned its protein into an elastic net.

A slow dough tastes better than a fast one. In a cold place the yeast works for a whole night, and bacteria add
their acids. In the oven the water becomes steam, the dough rises once more, and the crust turns brown where sugar
meets protein.
""",
    "lighthouses.md": """\
# Lighthouses

A lighthouse tells ships where they are at night. Each lighthouse has its own rhythm of flashes, so that a sailor
who counts the seconds between two flashes can find the lighthouse on the chart.

The light used to be a fire, later an oil lamp. A lens of glass rings, invented by Augustin Fresnel in 1822, gathers
the light of a small lamp into a beam that ships see from thirty kilometres away. Today a lighthouse works by
itself, without a keeper.
""",
    "tides.md": """\
# Tides

The moon pulls the water of the sea towards itself. The water rises on the side of the earth below the moon, and on
the far side too. As the earth turns, each coast passes both hills of water in a day, so the tide comes twice.

The sun pulls as well, with less than half the strength of the moon. When sun and moon stand in one line, their
tides add up to a spring tide. When they stand at a right angle, the tide is weak and is called a neap tide.
""",
}
