package command

import (
	"fmt"
	"io"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
)

// ReadInput returns the content of a file or of stdin, of at most limit bytes, and its name for
// messages.
func (a *App) ReadInput(file string, limit int) ([]byte, string, *vip.Problem) {
	if file != "-" {
		data, problem := tomlfile.ReadFile(file, limit)
		return data, file, problem
	}
	data, err := io.ReadAll(io.LimitReader(a.Stdin, int64(limit)+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("must be at most %d MiB", limit>>20)
	}
	if err != nil {
		return nil, "stdin", &vip.Problem{Code: vip.CodeInvalid, Place: "stdin", Message: err.Error()}
	}
	return data, "stdin", nil
}

// RefuseInput prints the problems of the input and ends the command.
func (a *App) RefuseInput(problems []vip.Problem) error {
	for _, p := range problems {
		a.Label("error", output.Bad, render.Problem(p))
	}
	a.Say("%s; nothing was changed", output.Plural(len(problems), "mistake"))
	return Exit(ExitError)
}
