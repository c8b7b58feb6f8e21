# Canvas and style of every picture. Margins, ticks, legend and every other text follow, each at its place.
if (!exists('format')) format = 'svg'
if (!exists('output')) output = name.'.'.format
# A PNG has two pixels for each of the SVG. Its font sizes are points, of which 3 are 4 pixels; those of the SVG are pixels.
if (format eq 'png') {
  set terminal pngcairo enhanced size 1800, 2 * height font 'sans-serif,15' fontscale 1.5 linewidth 2 pointscale 2 rounded
} else {
  set terminal svg enhanced size 900, height font 'sans-serif,15' linewidth 1 rounded
}
set output output
set encoding utf8

black = '#000000'; orange = '#E69F00'; sky = '#56B4E9'; green = '#009E73'; yellow = '#F0E442'
blue = '#0072B2'; vermillion = '#D55E00'; purple = '#CC79A7'; grey = '#606060'

set dashtype 2 (14, 5)
set dashtype 3 (3, 4)
set dashtype 4 (12, 4, 3, 4)
set dashtype 5 (24, 6)
set dashtype 6 (12, 4, 3, 4, 3, 4)
set dashtype 7 (6, 6)
set dashtype 8 (2, 8)

set border 3 linewidth 1.2 linecolor rgb black
set tics nomirror out scale 0.8
set grid xtics ytics linewidth 0.6 linetype 1 dashtype 1 linecolor rgb '#D8D8D8'
unset key
