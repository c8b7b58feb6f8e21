# Which policy is fastest where. Columns: x and y, counted from 1, and a text; one block for each policy that wins somewhere.
unset grid
set tics scale 0
set style fill solid 1 border rgb '#FFFFFF'
plot for [i = 1:series] data index i - 1 using 1:2:(0.5):(0.5) with boxxyerror \
         linewidth 1.5 dashtype solid fillcolor rgb colours[i], \
     data using 1:2:3 with labels font cell_font
