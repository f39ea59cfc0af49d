package output

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// gap separates two columns.
const gap = "  "

// Cell is one value of a table.
type Cell struct {
	Text  string
	Style Style
}

// Grid is a table with aligned columns. The last column is not padded.
type Grid struct {
	Indent string   // before every line
	Header []string // one per column; "+SIZE" is a column of -o wide only; nil: no header
	Rows   [][]Cell // each as long as Header, or shorter
	Footer string   // after the rows

	widths    []int // of the columns, at least; the widest cells so far after Text
	continued bool  // the header was printed
}

// NewGrid returns a table with a header.
func NewGrid(header ...string) *Grid { return &Grid{Header: header} }

// Add appends a row. Its values are cells, texts or numbers; an empty one becomes None.
func (g *Grid) Add(values ...any) {
	g.AddSparse(values...)
	last := g.Rows[len(g.Rows)-1]
	for i := range last {
		if last[i].Text == "" {
			last[i].Text = None
		}
	}
}

// AddSparse is Add for rows with empty cells.
func (g *Grid) AddSparse(values ...any) {
	row := make([]Cell, len(values))
	for i, v := range values {
		if cell, ok := v.(Cell); ok {
			row[i] = cell
		} else {
			row[i].Text = fmt.Sprint(v)
		}
	}
	g.Rows = append(g.Rows, row)
}

// Fact adds the line of a named text, unless the text is empty.
func (g *Grid) Fact(name, text string) {
	if text != "" {
		g.Add(Cell{Text: name, Style: Faint}, text)
	}
}

// Text returns the grid as text. Widths count characters and exclude color codes.
func (g *Grid) Text(p *Printer) string {
	var lines [][]Cell
	if g.Header != nil && !g.continued {
		header := make([]Cell, len(g.Header))
		for i, h := range g.Header {
			header[i].Text = strings.TrimPrefix(h, "+")
		}
		lines = append(lines, header)
	}
	lines = append(lines, g.Rows...)

	widths := g.widths
	for i, line := range lines {
		lines[i] = g.shown(line, p.Format == Wide)
		for column, c := range lines[i] {
			if column == len(widths) {
				widths = append(widths, 0)
			}
			widths[column] = max(widths[column], utf8.RuneCountInString(Clean(c.Text)))
		}
	}
	g.widths = widths
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(g.Indent)
		for i, c := range line {
			b.WriteString(p.Paint(c.Text, c.Style))
			if i < len(line)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(Clean(c.Text))) + gap)
			}
		}
		b.WriteByte('\n')
	}
	return b.String() + g.Footer
}

// shown returns the cells of a row that are printed: without the columns of -o wide unless wide is
// set, and without empty cells at the end.
func (g *Grid) shown(row []Cell, wide bool) []Cell {
	var out []Cell
	for i, c := range row {
		if wide || i >= len(g.Header) || !strings.HasPrefix(g.Header[i], "+") {
			out = append(out, c)
		}
	}
	for len(out) > 0 && out[len(out)-1].Text == "" {
		out = out[:len(out)-1]
	}
	return out
}
