# Style of every picture: Okabe-Ito colours, which the colour-blind tell apart, each with a dash and a point type of
# its own, so that a grey copy can be read too.
if (!exists('format')) format = 'svg'
if (!exists('output')) output = name.'.'.format
if (!exists('height')) height = 560
if (format eq 'png') {
  set terminal pngcairo enhanced size 1800, 2 * height font 'sans-serif,15' fontscale 2 linewidth 2 pointscale 2 rounded
} else {
  set terminal svg enhanced size 900, height font 'sans-serif,15' linewidth 1 rounded
}
set output output
set encoding utf8

black = '#000000'; orange = '#E69F00'; sky = '#56B4E9'; green = '#009E73'; yellow = '#F0E442'
blue = '#0072B2'; vermillion = '#D55E00'; purple = '#CC79A7'; grey = '#606060'; yellow = '#F0E442'

array colours[8] = [blue, vermillion, green, orange, purple, black, sky, grey]
array points[8] = [7, 5, 9, 13, 11, 4, 6, 8]
do for [i = 1:8] { set linetype i linecolor rgb colours[i] linewidth 2.4 pointtype points[i] pointsize 0.9 }
set linetype 1 dashtype solid
set linetype 2 dashtype (14, 5)
set linetype 3 dashtype (3, 4)
set linetype 4 dashtype (12, 4, 3, 4)
set linetype 5 dashtype (20, 4)
set linetype 6 dashtype (12, 4, 3, 4, 3, 4)
set linetype 7 dashtype (6, 6)
set linetype 8 dashtype solid
set linetype cycle 8

set title title_text
set border 3 linewidth 1.2 linecolor rgb black
set tics nomirror out scale 0.8
set grid xtics ytics linewidth 0.6 linetype 1 dashtype 1 linecolor rgb '#D8D8D8'
set datafile missing 'NaN'

# The legend stands beside the data, never on it.
set rmargin at screen legend_at - 0.02
set key at screen legend_at, graph 1.0 left top vertical Left reverse samplen 2.6 spacing 1.3 font ',13'
