# Throughput of every policy under its roofs. Columns: x, throughput, whether it is extrapolated (1: a hollow point), I/O
# roof, compute roof.
plot for [i = 1:series] data index i - 1 using 1:5 with lines linewidth 1.6 dashtype 3 linecolor rgb grey, \
     for [i = 1:series] data index i - 1 using 1:4 with lines linewidth 1.4 dashtype 2 linecolor rgb colours[i], \
     for [i = 1:series] data index i - 1 using 1:2 with lines \
         linewidth 2.4 linecolor rgb colours[i] dashtype dashes[i], \
     for [i = 1:series] data index i - 1 using 1:($3 == 0 ? $2 : NaN) with points \
         pointtype points[i] pointsize 0.9 linewidth 2 linecolor rgb colours[i], \
     for [i = 1:series] data index i - 1 using 1:($3 == 0 ? NaN : $2) with points \
         pointtype points[i] pointsize 0.9 linewidth 2 linecolor rgb '#FFFFFF', \
     for [i = 1:series] data index i - 1 using 1:($3 == 0 ? NaN : $2) with points \
         pointtype points[i] - 1 pointsize 0.9 linewidth 2 linecolor rgb colours[i]
