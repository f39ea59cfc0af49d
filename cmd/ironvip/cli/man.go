package cli

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/man"
)

// manCommand is for builds: `make man`.
func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "man DIR",
		Short:             "write the manual pages to a directory",
		Hidden:            true,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(cmd *cobra.Command, args []string) error {
			errs := []error{os.MkdirAll(args[0], 0o755)}
			for name, text := range man.Pages(cmd.Root()) {
				errs = append(errs, os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o644))
			}
			return errors.Join(errs...)
		},
	}
}
