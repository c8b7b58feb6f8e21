# One line for each combination of settings. Columns: x, y, whether it is extrapolated (1: a hollow point).
plot for [i = 1:series] data index i - 1 using 1:2 with lines \
         linewidth 2.4 linecolor rgb colours[i] dashtype dashes[i], \
     for [i = 1:series] data index i - 1 using 1:($3 == 0 ? $2 : NaN) with points \
         pointtype points[i] pointsize 0.9 linewidth 2 linecolor rgb colours[i], \
     for [i = 1:series] data index i - 1 using 1:($3 == 0 ? NaN : $2) with points \
         pointtype points[i] pointsize 0.9 linewidth 2 linecolor rgb '#FFFFFF', \
     for [i = 1:series] data index i - 1 using 1:($3 == 0 ? NaN : $2) with points \
         pointtype points[i] - 1 pointsize 0.9 linewidth 2 linecolor rgb colours[i]
