# One line for each combination of settings. Columns: x, y.
set xlabel x_label.note_text
set ylabel y_label offset -0.5, 0
if (log_x) set logscale x
if (log_y) set logscale y
eval x_tics
eval y_tics
eval ranges
plot for [i = 1:series] data index i - 1 using 1:2 with linespoints linetype styles[i] title series_names[i]
