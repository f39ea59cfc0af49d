package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/input"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

// editHead begins the file.
const editHead = `# The definition of service %s. Save and close the editor to store it; without a
# change, nothing is stored. Lines that begin with # are ignored.

`

func (a *app) serviceEditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "edit NAME",
		Short: "edit the definition of a service of the API in $EDITOR",
		Long: `Opens the definition of a service of the API in $VISUAL, $EDITOR or vi, and stores it when the
editor ends with a changed text. If the text is refused, or others have changed the service
meanwhile, it stays in a file: correct it there, and store it with "service apply -f".`,
		Example:           "  EDITOR=\"code --wait\" ironvip service edit shop/db",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(command.Services)),
	}
	dontWait := command.NoWait(cmd.Flags())
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		key, err := command.ParseKey(args[0])
		if err != nil {
			return err
		}
		s, err := c.Service(ctx, key.Namespace, key.Name, client.Wait{})
		if err != nil {
			return command.NotFound(err, command.SeeServices)
		}
		if s.Source != rest.Type {
			return &command.Failure{Code: command.ExitConflict, Err: fmt.Errorf("service %s is defined by source %s: %s", key, s.Source, s.Origin), Hint: "edit it there"}
		}
		definition, err := output.TOMLBlocks("service", []v1.ServiceSpec{definition(s)})
		if err != nil {
			return err
		}
		file, err := newText(key.Name, fmt.Sprintf(editHead, key)+definition)
		if err != nil {
			return &command.Failure{Code: command.ExitError, Err: err, Hint: "set TMPDIR to a directory that has space and that you may write"}
		}
		err = a.runEditor(ctx, file)
		edited, problem := tomlfile.ReadFile(file, maxApply)
		if problem != nil {
			return errors.Join(err, *problem)
		}
		if text := withoutComments(string(edited)); text == "" || text == withoutComments(definition) {
			if err = errors.Join(err, os.Remove(file)); err != nil {
				return err
			}
			a.Say("service %s not changed", key)
			return command.ShowChange(a.App, []v1.Service{}, nil)
		}
		var stored v1.Service
		if err == nil {
			w := a.Write(*dontWait)
			w.IfMatch = s.ETag
			stored, err = a.storeEdited(ctx, c, key, file, edited, w)
		}
		if err != nil {
			code := a.Report(err)
			a.Say("your text is in %s: store it with ironvip service apply -f %[1]s", file)
			return command.Exit(code)
		}
		a.Say("service %s updated (revision %d)%s", key, stored.Revision, command.AppliedWord(!*dontWait))
		return errors.Join(os.Remove(file), command.ShowChange(a.App, []v1.Service{stored}, []string{key.String()}))
	})
	return cmd
}

// newText writes a text about a service to a new file, which only this user may read.
func newText(service, text string) (file string, err error) {
	f, err := os.CreateTemp("", "ironvip-"+service+"-*.toml")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
	}
	return f.Name(), err
}

// runEditor runs the user's editor, a command of the shell, for a file on these streams. It waits for its end.
func (a *app) runEditor(ctx context.Context, file string) error {
	editor := cmp.Or(a.Getenv("VISUAL"), a.Getenv("EDITOR"), "vi")
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, "editor", file) // editor may have arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, a.Stdout, a.Stderr
	if err := cmd.Run(); err != nil {
		return &command.Failure{Code: command.ExitError, Err: fmt.Errorf("editor %s: %w", editor, err), Hint: "set VISUAL or EDITOR to an editor that works; nothing was stored"}
	}
	return nil
}

// withoutComments returns the lines of a text that are neither empty nor comments.
func withoutComments(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "#") {
			out.WriteString(t + "\n")
		}
	}
	return out.String()
}

// storeEdited sends the definition in a text. It prints the mistakes of the text.
func (a *app) storeEdited(ctx context.Context, c *client.Client, key vip.ServiceKey, file string, text []byte, w client.Write) (s v1.Service, err error) {
	services, problems := input.Services(file, text)
	if len(problems) > 0 {
		return s, a.RefuseInput(problems)
	}
	const hint = "create others with ironvip service apply"
	if len(services) != 1 {
		return s, &command.Failure{Code: command.ExitError, Err: fmt.Errorf("%s has %s, not one", file, output.Plural(len(services), "service")), Hint: hint}
	}
	if name := command.NameOf(cmp.Or(services[0].Namespace, vip.DefaultNamespace), services[0].Name); name != key.String() {
		return s, &command.Failure{Code: command.ExitError, Err: fmt.Errorf("%s has the service %s, not %s", file, name, key), Hint: hint}
	}
	return c.PutService(ctx, key.Namespace, key.Name, services[0], w)
}
