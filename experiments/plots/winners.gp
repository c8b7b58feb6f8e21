# Which policy is fastest where. Columns: x and y, counted from 1, and a text; one block for each policy that wins somewhere.
set xlabel x_label.note_text
set ylabel y_label offset -0.5, 0
eval x_tics
eval y_tics
eval ranges
unset grid
set tics scale 0
set key samplen 1.4
array fills[8] = [blue, vermillion, green, orange, purple, '#909090', sky, '#FFFFFF']
set style fill transparent solid 0.5 border rgb '#FFFFFF'
plot for [i = 1:series] data index i - 1 using 1:2:(0.5):(0.5) with boxxyerror linewidth 1.5 dashtype solid linecolor rgb fills[styles[i]] title series_names[i], \
     data using 1:2:3 with labels font ',12' notitle
