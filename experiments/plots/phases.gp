# Stacked bars: forward, backward, optimizer. Columns: place of the bar, forward, backward, optimizer, total.
set xlabel note_text
set ylabel y_label offset -0.5, 0
eval x_tics
eval ranges
eval group_labels
set grid noxtics
set xtics scale 0
set key samplen 1.4 invert
set style fill solid 1 border rgb black
set boxwidth 0.8
plot data using 1:($2 + $3 + $4) with boxes linewidth 0.8 dashtype solid fillcolor rgb yellow title 'optimizer', \
     data using 1:($2 + $3) with boxes linewidth 0.8 dashtype solid fillcolor rgb blue title 'backward', \
     data using 1:2 with boxes linewidth 0.8 dashtype solid fillcolor rgb sky title 'forward', \
     data using 1:5:6 with labels offset 0, 0.6 font ',12' notitle
