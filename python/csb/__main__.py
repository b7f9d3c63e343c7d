from csb.cli import main

raise SystemExit(main())
