from ukjax.cli import main


main()
