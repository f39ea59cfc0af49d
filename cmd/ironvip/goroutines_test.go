package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/must"
)

// contained are the folders of sources and stages. Input from a server, a peer or a file must not
// end the agent, which serves others: see parallel.Group.
var contained = []string{"sources", "health", "dns", "internal/mirror", "announce/eligible", "announce/nodes", "health/healthport",
	"fleet", "pipeline", "pipeline/overrides", "ipam", "agent/naming", "agent/announcing"}

// Sources and stages start goroutines with parallel only, which turns a panic into an error.
func TestGoroutinesSurvivePanics(t *testing.T) {
	files := token.NewFileSet()
	for _, folder := range contained {
		must.Succeed(t, filepath.WalkDir(filepath.Join("../..", folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a goroutine that is not one of parallel.Group", files.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, is := n.X.(*ast.Ident); is && (x.Name == "errgroup" || x.Name == "sync" && n.Sel.Name == "WaitGroup") {
						t.Errorf("%s: use parallel.Group instead of %s.%s", files.Position(n.Pos()), x.Name, n.Sel.Name)
					}
				}
				return true
			})
			return nil
		}))
	}
}
