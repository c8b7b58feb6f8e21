# One steady step of two plans above each other, on one axis of time. Blocks of boxes: row, start, end; of memory: time, bottom,
# top of what is in use.
set xlabel 'time in the step (s)'
set yrange [rows + 0.6:0.2]
set xrange [0:longest_seconds]
eval y_tics
set ytics scale 0
set format x '%h'
set rmargin at screen 0.97
set grid noytics
set border 1
eval marks
set key at screen 0.5, screen 0.01 center bottom horizontal Left reverse samplen 1.4 spacing 1.25 width 1 maxrows 2
set bmargin 7
set style fill solid 1 noborder
colour_of(name) = value(name)
plot for [k = 1:kinds] data index k - 1 using 2:1:2:3:($1 - 0.38):($1 + 0.38) with boxxyerror \
         linewidth 0.2 fillcolor rgb colour_of(kind_colours_of[k]) title kind_names[k], \
     for [m = 1:memories] data index kinds + m - 1 using 1:2:3 with filledcurves \
         fillcolor rgb '#A0A0A0' title (m == 1 ? 'memory in use' : '')
