# Throughput of every policy under its roofs. Columns: x, throughput, I/O roof, compute roof.
set xlabel x_label.note_text
set ylabel y_label offset -0.5, 0
set logscale xy
eval x_tics
eval y_tics
eval ranges
plot for [i = 1:series] data index i - 1 using 1:4 with lines linewidth 1.6 dashtype (2, 4) linecolor rgb grey notitle, \
     for [i = 1:series] data index i - 1 using 1:3 with lines linewidth 1.8 dashtype (9, 5) \
         linecolor rgb colours[(styles[i] - 1) % 8 + 1] notitle, \
     for [i = 1:series] data index i - 1 using 1:2 with linespoints linetype styles[i] dashtype solid title series_names[i], \
     keyentry with lines linewidth 1.6 dashtype (2, 4) linecolor rgb grey title 'compute roof', \
     keyentry with lines linewidth 1.8 dashtype (9, 5) linecolor rgb black title 'I/O roof'
