# Stacked bars: forward, backward, optimizer. Columns: place of the bar, forward, backward, optimizer, total, a text.
set grid noxtics
set xtics scale 0
set style fill solid 1 border rgb black
set boxwidth 0.8
plot data using 1:($2 + $3 + $4) with boxes linewidth 0.8 dashtype solid fillcolor rgb yellow, \
     data using 1:($2 + $3) with boxes linewidth 0.8 dashtype solid fillcolor rgb blue, \
     data using 1:2 with boxes linewidth 0.8 dashtype solid fillcolor rgb sky
