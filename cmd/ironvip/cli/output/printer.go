package output

import (
	"fmt"
	"io"
	"strings"
)

// Printer writes a command's data and messages. It is not safe for concurrent use.
type Printer struct {
	Out, Err           io.Writer
	Format             Format
	ColorOut, ColorErr bool
}

// View is one result in every format.
type View struct {
	Data   any                    // for JSON and YAML: the API's own document
	Names  []string               // for Name
	Errors []string               // for Name: why the command fails, which the other formats have in their data
	TOML   func() (string, error) // for TOML; nil: no TOML form
	Text   func(*Printer) string  // for Table and Wide; nil: no text
	Empty  string                 // the message in place of Text; "": none
}

// List returns the view of a table. Its names are in the first column, or are the texts of some columns joined by "/".
// Without rows, the message empty takes the place of the table, unless it is "".
func List(data any, grid *Grid, empty string, names ...int) View {
	v := View{Data: data, Text: grid.Text}
	if len(names) == 0 {
		names = []int{0}
	}
	for _, row := range grid.Rows {
		v.Names = append(v.Names, strings.Join(Texts(names, func(column int) string { return row[column].Text }), "/"))
	}
	if len(grid.Rows) == 0 {
		v.Empty = empty
	}
	return v
}

// Texts returns the text of each thing.
func Texts[T any](things []T, text func(T) string) []string {
	texts := make([]string, len(things))
	for i, t := range things {
		texts[i] = text(t)
	}
	return texts
}

// Show writes the view in the printer's format.
func (p *Printer) Show(v View) (err error) {
	text := ""
	switch {
	case p.Format == JSON:
		return writeJSON(p.Out, v.Data)
	case p.Format == YAML:
		return writeYAML(p.Out, v.Data)
	case p.Format == Name:
		var b strings.Builder
		for _, name := range v.Names {
			b.WriteString(Clean(name) + "\n")
		}
		text = b.String()
		for _, e := range v.Errors {
			p.Label("error", Bad, e)
		}
	case p.Format == TOML:
		text, err = v.TOML()
	case v.Empty != "":
		p.Say("%s", v.Empty)
	case v.Text != nil:
		text = v.Text(p)
	}
	if err == nil {
		_, err = io.WriteString(p.Out, text)
	}
	return err
}

// Stream writes one of an unlimited series of views. JSON is on one line, so that each line is a
// document. YAML documents follow "---".
func (p *Printer) Stream(v View) error {
	switch p.Format {
	case JSON:
		return writeJSONLine(p.Out, v.Data)
	case YAML:
		if _, err := io.WriteString(p.Out, "---\n"); err != nil {
			return err
		}
	}
	return p.Show(v)
}

// StreamRows writes the rows of a table of unlimited length, and removes them: the columns of the next rows are at least as
// wide, and have no header.
func (p *Printer) StreamRows(g *Grid) error {
	if len(g.Rows) == 0 {
		return nil
	}
	err := p.Stream(View{Text: g.Text})
	g.Rows, g.continued = nil, true
	return err
}

// People reports whether the format is human-readable.
func (p *Printer) People() bool { return p.Format == Table || p.Format == Wide }

// Paint colors text for Out, if colors are enabled.
func (p *Printer) Paint(s string, style Style) string {
	s = Clean(s)
	if !p.ColorOut {
		return s
	}
	return paint(s, style)
}

// Say writes one line of messages.
func (p *Printer) Say(format string, args ...any) {
	fmt.Fprintln(p.Err, Clean(fmt.Sprintf(format, args...)))
}

// Label writes one line of messages after a colored word: "error: no such pool".
func (p *Printer) Label(word string, style Style, text string) {
	word += ":"
	if p.ColorErr {
		word = paint(word, style)
	}
	fmt.Fprintln(p.Err, word, Clean(text))
}
